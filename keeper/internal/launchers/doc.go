// Package launchers manages launchers, the processes that commands are forked from: one idle and warm, more while
// commands start side by side.
//
// A command must be in its own cgroup before it runs, so that one write ends all of it, including processes that called
// setsid or daemonised. Moving a process into a cgroup costs about 10 ms, and clone3 into one is closed by the seccomp
// profile. So a launcher joins a sub-cgroup c<N> and forks commands on request, their stdio passed by SCM_RIGHTS. It has
// a worse OOM score than the keeper. It forks with CLONE_PARENT: the keeper is the parent of every command and adopts
// the processes that a command leaves behind. When no process of a command is left in the group, its launcher is used
// again; surplus ones end after 10 s.
//
// At most eight launchers exist, because each has about five threads. A start that finds none idle takes the launcher
// with the longest-running command, of at least 10 ms: the launcher moves to a new group. The old group stays: the keeper
// kills by cgroup.kill, lists by cgroup.procs, signals the process group itself (under the lock under which it reaps, so
// that the pid is still the same process), and removes the directory when it is empty, which it checks after reaping,
// since the last process of a group is always its child. So 200 commands are 200 processes, and the pids limit is the
// user's. A command may end before the keeper knows its pid from the launcher's answer: while a start is unanswered, the
// keeper remembers the ends of unknown children.
//
// Without cgroups no launcher moves and only the sandbox's own limits apply. The launcher is then the parent of its
// command, and the subreaper of processes that it leaves behind; a kill stops and kills the launcher's descendants until
// none is left.
//
// Root inside can still leave its group by writing to a cgroup, if the sandbox has one mounted writable (Skerry mounts
// none); kill launchers, which ends no command, except one that is just starting; and end PID 1 with TERM, which is a
// shutdown.
package launchers
