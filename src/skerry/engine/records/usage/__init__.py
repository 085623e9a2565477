"""Usage: the resources that each sandbox and command has used.

An *account* holds the usage of one sandbox (`account`). The *meter* samples the counters of the kernel and of the
network worker, also at each transition (`meter`). The *store* keeps accounts on disk, one row for each sandbox and day
(`store`)."""
