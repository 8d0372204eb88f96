#!/bin/bash
# Shows on a real ext4 that a failed writeback poisons the log, whichever call hears of it, and that nothing called
# durable is lost. Needs root and a free loop device; never part of a test command. It works in a mount namespace of its
# own, on an image in a tmpfs of fixed size, and a trap releases all of it. Blocks of the image that a segment uses are
# taken out of a tmpfs that is then filled up, so that writing them back fails; a probe file of the same file system
# shows that the kernel reports that to an fsync.
# PYTHON names another interpreter than the environment's.
# Exit: 0 the log kept its word, 1 it did not, 77 "not provoked" (nothing was shown, and the line says why).
set -u
cd "$(dirname "$0")/.." || exit 77
not_provoked() { echo "not provoked: $*"; exit 77; }

if [ "${1:-}" != inside ]; then
    [ "$(id -u)" = 0 ] || not_provoked "mounting needs root"
    for tool in unshare mount umount losetup mkfs.ext4 fallocate; do
        command -v "$tool" > /dev/null || not_provoked "there is no $tool"
    done
    unshare --mount --propagation private true 2> /dev/null || not_provoked "no mount namespace of its own"
    exec unshare --mount --propagation private "$0" inside
fi

python="${PYTHON:-$PWD/.venv/bin/python}"
command -v "$python" > /dev/null || not_provoked "there is no $python"
export PYTHONPATH="$PWD"
base=$(mktemp -d)
loop=""
release() {
    mountpoint -q "$base/disk" && umount "$base/disk"
    [ -n "$loop" ] && losetup --detach "$loop"
    mountpoint -q "$base/memory" && umount "$base/memory"
    rm -f "$base/said"
    rmdir "$base/disk" "$base/memory" "$base" 2> /dev/null
}
trap release EXIT
trap 'exit 130' INT TERM
mkdir "$base/memory" "$base/disk"
image="$base/memory/image"
mount -t tmpfs -o size=80m,mode=700 walkit-writeback "$base/memory" || not_provoked "no tmpfs"

for level in none interval; do
    rm -f "$image"
    truncate --size 64M "$image"
    mkfs.ext4 -q -F -b 4096 -E nodiscard "$image" || not_provoked "no ext4"
    # All of the image has its memory now; what is taken out later are blocks of data alone, so the file system stays whole.
    fallocate --length 64M "$image" || not_provoked "the tmpfs is too small"
    loop=$(losetup --find --show "$image" 2> /dev/null) || { loop=""; not_provoked "no loop device"; }
    mount -t ext4 -o noatime,errors=continue "$loop" "$base/disk" || not_provoked "this kernel mounts no loop device"

    "$python" - "$level" "$base/disk" "$image" "$base/memory/fill" > "$base/said" << 'PYTHON'
import ctypes, errno, fcntl, os, struct, subprocess, sys, threading
import walkit

level, disk, image, fill = sys.argv[1:]
libc, block, end = ctypes.CDLL(None), 4096, 1 << 20


def write_back():
    fd = os.open(disk, os.O_RDONLY)
    libc.syncfs(fd)  # of this file system alone
    os.close(fd)


def punch(path, begin):
    """Take blocks of a file out of the tmpfs under the image.

    What is written there must begin in the first of them: a write of which the beginning finds room is short, and
    the loop device calls a short write done.
    """
    fd = os.open(path, os.O_RDONLY)
    for number in range(begin // block, end // block):
        (physical,) = struct.unpack("i", fcntl.ioctl(fd, 1, struct.pack("i", number)))  # FIBMAP
        where = ["--offset", str(physical * block), "--length", str(block)]
        subprocess.run(["fallocate", "--punch-hole", *where, image], check=True)
    os.close(fd)


def fill_up():
    fd = os.open(fill, os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(fd, bytes(block))
    except OSError as error:
        assert error.errno == errno.ENOSPC
    os.close(fd)


probe = os.open(f"{disk}/probe", os.O_RDWR | os.O_CREAT)
os.write(probe, bytes(end))
os.fsync(probe)
heard, told = threading.Event(), []


def listen(name, facts):
    if name in ("walkit.maintenance.fail", "walkit.log.poison"):
        told.append(f"{name} {facts}")
        heard.set()


late = {"interval_ms": 86_400_000} if level == "interval" else {}
limits = {"segment_bytes": 8 << 20, "frame_bytes_max": 64 << 10}
options = walkit.LogOptions(durability=level, idle_marker_ms=0, **limits, **late)
log = walkit.open(f"{disk}/log", options=options, events=listen)
durable = 0
while durable < 100 or where % block:  # up to the end of a block: the next frame begins in one that is taken out
    where = log.append(b"durable").next_position
    durable += 1
log.sync()
segment = next(name for name in sorted(os.listdir(f"{disk}/log")) if name.endswith(".segment"))
write_back()
punch(f"{disk}/log/{segment}", block + where)  # the header of a segment takes one
punch(f"{disk}/probe", 0)
fill_up()
for number in range(60):
    log.append(b"its writeback fails" + bytes(4000))
os.pwrite(probe, b"p" * end, 0)
write_back()
try:
    os.fsync(probe)
    print("probe none")
except OSError as error:
    print("probe", errno.errorcode[error.errno])
try:
    os.fsync(probe)
    print("again 0")
except OSError as error:
    print("again", errno.errorcode[error.errno])
try:
    for number in range(40):  # a step of zeroing ahead comes due, on the upkeep thread
        log.append(b"behind it" + bytes(4000))
except walkit.WalkitError:
    pass
heard.wait(10)
os.unlink(fill)  # from now on writing succeeds: only what the kernel has told once knows better
try:
    print("sync", log.sync())
except walkit.WalkitError as error:
    print("sync", type(error).__name__)
try:
    log.close()
except walkit.WalkitError:
    pass
print("durable", log.durable_lsn)
print("poisoned", log.statistics().poisoned)
print("heard", *told[:1])
PYTHON
    status=$?
    sed "s/^/$level: /" "$base/said"
    [ "$status" = 0 ] || not_provoked "the log or its place ended with an error of its own"
    umount "$base/disk" || not_provoked "the file system cannot be unmounted"
    losetup --detach "$loop" && loop=""
    probe=$(sed -n 's/^probe //p' "$base/said")
    durable=$(sed -n 's/^durable //p' "$base/said")
    poisoned=$(sed -n 's/^poisoned //p' "$base/said")
    [ "$probe" != none ] || not_provoked "no error was reported to the fsync of the probe file"

    loop=$(losetup --find --show "$image") || { loop=""; not_provoked "no loop device"; }
    mount -t ext4 -o noatime "$loop" "$base/disk" || not_provoked "the image cannot be mounted again"
    found=$("$python" -c 'import sys, walkit
with walkit.open(sys.argv[1]) as log:
    print(len(list(log.read())))' "$base/disk/log") || found=-1
    umount "$base/disk" && losetup --detach "$loop" && loop=""
    if [ "$found" -lt "$durable" ] || [ "$poisoned" != 1 ]; then
        echo "$level: BROKEN: $durable records were called durable, $found are there; poisoned $poisoned"
        exit 1
    fi
    echo "$level: kept: $durable records were called durable, $found are there; poisoned $poisoned"
done
