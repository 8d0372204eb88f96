"""The logs of replication: what a publisher reads its frames from, and the imported log of a replica."""
