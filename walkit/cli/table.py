"""All commands and options of the command line: parser, help, completion and the table in the docs are made of them.

A paragraph is a command: its name, its handler as MODULE:FUNCTION, a brief text with the rest of its description after
a bar, an example after `$`, and its arguments. A paragraph without a handler has kinds below it; one whose name is in
brackets is a group of arguments, which `+` adds to a command.

An argument is its names, the name of its value, and two spaces before its help. `=` sets a default, `>` the attribute,
`<>` the kind of the value, if its name does not (see `values`). Lower case between bars lists the possible values.
`...` lets an option be repeated, `*` takes any number of arguments, and of neighbours with `/` only one may be given.
A deeper indent continues a line.
"""

from __future__ import annotations

COMMANDS = """
[common]
  --debug  show the traceback of an error
  / -q --quiet  print only results and errors
  / -v --verbose  also print walkit's events as they happen

[log]
  LOG  folder of the log

[payload log]
  --payload-log PLACE  look for a payload log there first

[report]
  --json  print JSON to standard output
  --out FILE  save it there; with --json, as JSON

[bench]
  --json  print JSON to standard output
  --out FILE  save it there: FILE.parquet gets the rows, for pandas; with --json, any other gets JSON

[primary]
  --token-file FILE  the primary's token: the first line of this file; without it the environment variable WALKIT_TOKEN,
    if it is set
  --token <token>  -
  --tls  the primary has to show a certificate of a well-known authority
  --tls-ca FILE  the same, of these authorities, in PEM; implies --tls, as the next ones do
  --tls-certificate FILE  show this certificate, if the primary requires one
  --tls-key FILE  the certificate's private key
  --tls-server-name NAME  the name in the primary's certificate, if it is not HOST
  --insecure  off loopback send the token also without TLS, in the clear

inspect walkit.cli.look:inspect
  show the marks, segments and frames of a log|; frame bodies of sealed segments and snapshots are read only with
    --frames, else marked as not read
  $ walkit inspect orders.log --frames
  + log
  --frames  also list every frame, read whole
  --links  also list every link to a payload log, with its value
  + payload log
  + report

dump walkit.cli.dump:dump
  print the records of a log, one per line|; bytes that are not UTF-8 become base64 under a name that shows it
  $ walkit dump orders.log --from 1000 --format csv --out part.csv
  + log
  --format json|csv|parquet  json: one object per line (default); parquet needs --out
  --json  the same as --format json
  + payload log
  --damaged  also print the records that damaged frames still hold, with a column for verified ones
  --from LSN>first_lsn  first record (default: the oldest)
  --to LSN>last_lsn  last record (default: the newest)
  --out FILE  save the records there instead of printing them

verify walkit.cli.look:verify
  check every byte of a log that was promised|; changes nothing and disturbs no writer
  $ walkit verify orders.log --json
  + log
  --payloads  also read and check the values in payload logs; exits with 3 if these alone cannot be reached
  + payload log
  + report

repair walkit.cli.look:repair
  repair a damaged log|; keeps what it removes in lost+found; exits 1 if promised records are given up, or the policy
    refuses. With --from, damaged ranges get a peer's frames, and nothing else is changed; exits 1 if damage is left
  $ walkit repair orders.log --policy salvage --dry-run
  + log
  --policy prefix|holes|absolute|salvage  treatment of damage; only salvage gives up promised records (default: prefix)
  --from HOST:PORT>source  heal the log with frames of a peer that serves the same log: its primary, or a replica of it
  + primary
  --dry-run  show the changes, and make none
  + report

claims walkit.cli.commands:claims
  list the claims of consumers in other processes on a log|; a claim keeps records from being dropped until its lease is
    over; exits 1 if one cannot be read
  $ walkit claims orders.log --drop old-reader
  + log
  --drop NAME  first remove this claim, whose consumer is gone
  + report

copy walkit.cli.commands:copy
  make a consistent copy of a log, beside its writer|; the records on stable storage, checked, in a new place; a killed
    copy continues when it is run again
  $ walkit copy orders.log backup/orders.log
  + log
  DIR>target  new folder or URL of the copy
  --payloads  also copy the payload logs, to DIR.payloads-ID
  --payloads-to PLACE  also copy the payload log, to this folder or URL
  + report

diff walkit.cli.compare:compare
  compare two states, key by key|: those of two logs, or one log at two LSNs; exit code 1 if they differ, and 3 if a log
    is damaged. I is only right, D only left, C has another value; the LSNs name the records that set it
  $ walkit diff orders.log@1000 orders.log --out changes.csv
  LOG[@LSN]>left  folder of the log; with @LSN as it was after that record
  LOG[@LSN]>right  folder of the log; with @LSN as it was after that record
  --spark  compare with Spark and print counts and samples
  --decoder json|arrow  print counts and samples, of changed values by column: of JSON objects or Arrow streams
  --ignore COLUMN...  leave this column out
  --tolerance R=0  numbers that differ by at most this are equal
  --json  print JSON to standard output
  --out FILE  save it there: FILE.csv or FILE.parquet gets all rows, FILE.html a page with counts and samples, any other
    file the report

serve walkit.cli.network:serve
  let replicas follow a log that another process may be writing|; only durable records are sent; runs until it is
    interrupted
  $ walkit serve orders.log --listen 127.0.0.1:7070
  + log
  --listen HOST:PORT=127.0.0.1:0  port 0 takes a free one
  --token-file FILE  the token that a replica has to show: the first line of this file; without it the environment
    variable WALKIT_TOKEN, if it is set
  --token <token>  -
  --tls-certificate FILE  serve with TLS: the certificate and its chain, in PEM
  --tls-key FILE  the certificate's private key, in PEM, without a password
  --tls-client-ca FILE  serve only replicas that show a certificate of these authorities
  --insecure  off loopback also without TLS, or without a token
  --metrics-port N  let this machine read the metrics there, as Prometheus does

follow walkit.cli.network:follow
  keep a replica of a served log in a folder|: its frames, verbatim, at the same LSNs and positions; or, with --delta,
    the state of a log on this machine. Runs until it is interrupted
  $ walkit follow 127.0.0.1:7070 replica.log
  HOST:PORT>address  address of the primary
  DIR>folder  the replica's folder; made if it is missing
  --delta LOG  keep the state of LOG, which is on this machine and served at HOST:PORT, by delta poll; DIR has its
    checkpoints
  + primary
  --json  print each status as one line of JSON
  --codec zstd|snappy|none  how frames are compressed on their way (default: zstd); stored bytes are the same
  --new-identity  follow as another replica with the data that is there, as a copied folder must
  --checkpoint-every RECORDS  save the replica's state every RECORDS records, and drop its log below that
  --rewind  if the histories differ, cut the replica's log back to the last common record; the rest is kept in
    lost+found
  --rejoin  compare the histories first: the folder stays as it is, is rewound, or is kept under another name and an
    empty one takes its place; asks before it changes anything
  --yes  with --rejoin: change the folder without a question
  --force-rewind  the same, even past records that holds, claims and replicas of this one have read
  --payload-log PLACE  where large values of the log are: the replica names it for its readers, also after a promotion

status walkit.cli.network:status
  show the replicas and delta readers of a served log|, with states, lags, claims and the last trouble; exits with 1
    unless it serves
  $ walkit status 127.0.0.1:7070
  HOST:PORT>address  the address of the primary
  + primary
  + report

promote walkit.cli.network:promote
  make a replica a primary of its own|, with a new epoch; the old primary is not fenced: stop it first, or its records
    from here on are in no log but its own. Refused while the replica runs
  $ walkit promote replica.log
  DIR>log  the replica's folder
  + report

demo walkit.cli.commands:demo
  run the main job on real input, with a report|: flights through a Store, a kill, a recovery, a replica, compaction,
    replay and diff with Spark, all checked; the report is HTML
  $ walkit demo --out report
  --out DIR  folder of the report and its logs (default: walkit-demo)
  --operations N  operations to take, 5000 or more (default: the demo's own)
  --writers N  threads that write (default: the demo's own)

bench
  measure this machine
  $ walkit bench write --writers 1,8,64

bench write walkit.cli.bench:bench_write
  measure appending: records per second and latencies|, for every combination, beside a raw loop of synced writes in the
    same run
  $ walkit bench write --writers 1,8,64 --tasks 64 --peers --json
  --writers N,N  threads (default: 1,8,64; those of --outstanding if it is given)
  --tasks N,N  asyncio tasks (default: 64; none with --model; those of --outstanding if it is given)
  --outstanding N,N  records on their way at a time, with tickets from one thread, instead of submit and the bulk calls;
    every way is then followed by raw parallel writes of equal frames
  --record-bytes N,N=100  bytes of a value
  --in-flight N,N  frames in flight (default: 1; with a URL 16)
  --ack-order ORDER,ORDER  append, completion, or both (default: append)
  --durability sync|interval|none=sync  promise of an acknowledgement
  --policy NAME,NAME  when frames are sealed: take-all (default), one-record, adaptive (default with a URL),
    capped:RECORDS, linger:MICROSECONDS
  --direct-io  write past the page cache (O_DIRECT), aligned to 4096 bytes
  --seconds S=2  time of each way in
  / --path --device DIR|URL  the folder to measure in (default: the temporary folder)
  / --model NAME  a modelled device instead of a real one
  --peers  measure SQLite, LevelDB, RocksDB and LMDB too, with as many threads
  --runs N  repeat everything N times and show medians (default: 1; 5 with --peers or a URL)
  + bench

bench order walkit.cli.bench:bench_order
  measure the cost of append order against completion order|: ratios of throughput and p99, with the mean number of
    frames in flight beside each, on the disk, on one as slow as a modelled device, and in virtual time
  $ walkit bench order --writers 8,64 --runs 3 --json
  --writers N,N=8,16,32,64  threads
  --in-flight N=8  frames written at the same time
  --policy NAME,NAME=one-record,capped:4,take-all>policies  when frames are sealed
  --models NAME,NAME=essd-pl1-20g  modelled devices, in real time and in virtual time; '' for none
  --record-bytes N=1024>value_bytes  bytes of a value
  --seconds S=0.6  time of a measurement
  --runs N=5>rounds  rounds, of which ratios are medians
  --buffered  write through the page cache, not past it (O_DIRECT)
  --path DIR  the folder to measure in (default: the temporary folder)
  --save-runs DIR  save every measurement there as a Run
  + bench

bench recovery walkit.cli.bench:bench_recovery
  measure opening after a kill: verify, log, Store|, for every combination, beside plainly reading the same bytes; exit
    code 1 if something is missing. The full size: --operations 10000000 --keys 1000000 --frame-records 10000
    --checkpoint-age 1
  $ walkit bench recovery --operations 100000 --frame-records 300 --json
  --operations N,N=100000  puts
  --keys N  number of keys (default: a tenth of the operations)
  --record-bytes N=100  bytes of a value
  --frame-records N,N=1,300  records of a frame, or of a peer's batch
  --checkpoint-age A,A=1,0.1  share of the operations after the checkpoint; 1 means no checkpoint
  --cache NAME,NAME=warm,cold  warm, cold, or both
  --peers  reopen LevelDB, RocksDB and SQLite after a kill, too, with the same operations
  --runs N=1  repeat each opening N times and show medians
  --path DIR  the folder to work in (default: the temporary folder)
  + bench

bench spark walkit.cli.bench:bench_spark
  measure a log in Spark: reads, replays, changes, diffs, streams|, beside Parquet of the same rows and one process, in
    the same rounds
  $ walkit bench spark --records 1000000 --queries read,replay --json
  --records N,N=1000000  records of a log, or of several
  --queries NAME,NAME  of read, filter, replay, past, count, changes, diff, verify, skew, stream (default: all)
  --record-bytes N=64  bytes of a value
  --runs N=3  rounds that count
  --master MASTER=local[2]  Spark's master
  --path DIR  the folder to work in (default: the temporary folder)
  + bench

bench replication walkit.cli.bench:bench_replication
  measure appending with a replica, the replica's lag, and how fast a new one catches up|, beside appending alone and
    plain reading in the same run
  $ walkit bench replication --writers 16 --seconds 3 --json
  --writers N=16  threads
  --record-bytes N=512  bytes of a value
  --seconds S=3  time with a replica, and time alone
  --path DIR  the folder to measure in (default: the temporary folder)
  + bench

bench delta walkit.cli.bench:bench_delta
  measure how far a delta reader lags, beside one that reads the log alone|: on the folder, on a modelled remote
    storage, and there in virtual time too
  $ walkit bench delta --mb-per-s 20 --record-bytes 1024 --json
  --mb-per-s R=20  rate of the steady load
  --record-bytes N=1024  bytes of a value
  --frame-bytes N=16384  bytes of a frame
  --buffers N,N=32768,262144  bytes that a primary keeps for a reader
  --seconds S=3  time for each reader
  --rounds N=3  how often each reader is measured, in turns
  --path DIR  the folder to measure in (default: the temporary folder)
  + bench

simulate
  run a replicated log through faults, in virtual time
  $ walkit simulate world --seed 1 --schedules 200

simulate world walkit.cli.commands:simulate_world
  let a primary, replicas and delta readers live through faults drawn from a seed|: lost, repeated and late messages,
    cut links, crashes, failed writes, claims that expire. Each step is checked; of a schedule that breaks a rule the
    shortest that is found is printed, with the command that runs it again. Each kind of event is counted. Exit code 1
    if a schedule breaks a rule, or if something that 100 schedules have to show never happens
  $ walkit simulate world --seed 1 --schedules 200
  --seed N<number>=0  the first seed
  --schedules N  how many seeds, each a schedule (default: 100; 1 with --keep)
  --keep N,N<numbers>  only these faults of the seed's schedule, by number; 'none' for none
  --chaos-ms MS  virtual milliseconds in which faults begin (default: 15000)
  + report

crashtest walkit.cli.crashtest:crashtest
  cut the power at each moment and judge the states left|: a scenario is run, and each state that a cut leaves is
    recovered and judged by rules. Everything is in memory, on a model of the page cache. Exit code 1 if a state breaks
    a rule: it is printed as small as it can be made, with the code that makes it again
  $ walkit crashtest --scenario append --profile ext4-ordered --budget 500
  --scenario NAME...  scenario to run; repeat it for more (default: all; with --mutant, the one it shows in)
  --profile NAME...  the changes without a sync that a power cut may lose, more than once for more (default: contract
    and ext4-ordered)
  --budget N=100  states that are judged per scenario and profile
  --jobs N  processes that explore side by side (default: one for each core, 8 at most)
  --seed N<number>=0  seed of the random draws
  --mutant NAME  judge walkit with this historic bug put back: the exit code is 1 then
  --save-violation DIR  write the files of the first violation into a new folder
  --coverage  print the number of states by the operation that was cut
  --list  list scenarios, profiles, rules and mutants, and end
  + report

dashboard walkit.cli.commands:dashboard
  serve the dashboard on this machine, and print its address|: a scratch log for each browser window, and each argument
    on a part of the page; a log is only read, and nothing on the page changes it. Runs until it is interrupted
  $ walkit dashboard orders.log run.parquet
  LOG | RUN*>paths  folder or URL of a log, or file of a saved Run
  / --port N<port>=0  port on loopback; 0 is a free one
  / --socket FILE  a Unix socket instead, for a proxy that controls access
  --show  open it in the browser

doctor walkit.cli.commands:doctor
  report packages, disks and problems|: packages and the extras that bring them, file system, mount options and raw
    device of folders, Java, browser, JupyterLab; each problem with its remedy. Exit code 1 for a problem
  $ walkit doctor --path /var/lib/orders --spark
  --path DIR...  a folder whose disk is checked, or the URL of an object store; repeat it for more (default: the
    temporary and the current folder)
  --spark  start Spark, too, which takes some seconds
  + report

remove walkit.cli.commands:remove
  delete a log on object storage|; asks first, and refuses while a claim lives; close the writer first
  $ walkit remove s3://bucket/orders --yes
  URL  s3://, gs://, az:// or objects: URL of the log
  --yes  do not ask

salvage walkit.cli.look:salvage
  make a folder of a damaged log on object storage|; it has every intact frame, and the objects stay as they are; exits
    1 if promised records are given up
  $ walkit salvage s3://bucket/orders orders.log
  URL  s3://, gs://, az:// or objects: URL of the log
  DIR>target  folder of the new log, which must not be there
  + report

completion walkit.cli.completion:completion
  print a script that completes commands and options|, for bash and zsh: source <(walkit completion)
  $ walkit completion --quiet
"""
