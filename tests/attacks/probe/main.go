// Command probe makes system calls that a sandbox must refuse, with arguments that a permitting kernel accepts or at
// least examines: each in its own process, since a signal refuses some. It prints {"name": "EPERM"}, or "ok", or the
// signal that ended it. The arguments change nothing on a host, where the test observes the answer to a permitted call.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

type call func() syscall.Errno

func main() {
	if len(os.Args) == 3 && os.Args[1] == "one" {
		one(calls()[os.Args[2]])
	}
	results := map[string]string{}
	var mu sync.Mutex
	var all sync.WaitGroup
	turns := make(chan struct{}, 8)
	for name := range calls() {
		all.Add(1)
		go func() {
			defer all.Done()
			turns <- struct{}{}
			result := apart(name)
			<-turns
			mu.Lock()
			defer mu.Unlock()
			results[name] = result
		}()
	}
	all.Wait()
	_ = json.NewEncoder(os.Stdout).Encode(results)
}

func one(c call) {
	if errno := c(); errno != 0 {
		fmt.Print(errnoName(errno))
	} else {
		fmt.Print("ok")
	}
	os.Exit(0)
}

// callTimeout bounds a call: a filter may kill the calling thread alone, and its process then waits for ever.
const callTimeout = 2 * time.Second

func apart(name string) string {
	limit, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	command := exec.CommandContext(limit, "/proc/self/exe", "one", name)
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no terminal to hang up
	out, err := command.Output()
	if limit.Err() != nil {
		return "thread killed"
	}
	if exit, ok := err.(*exec.ExitError); ok {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return status.Signal().String()
		}
	}
	if err != nil {
		return err.Error()
	}
	return string(out)
}

func errnoName(e syscall.Errno) string {
	names := map[syscall.Errno]string{
		syscall.EPERM: "EPERM", syscall.ENOSYS: "ENOSYS", syscall.EACCES: "EACCES", syscall.EINVAL: "EINVAL",
		syscall.EFAULT: "EFAULT", syscall.EBADF: "EBADF", syscall.ENOENT: "ENOENT", syscall.ESRCH: "ESRCH",
		syscall.ENODEV: "ENODEV", syscall.ENOTTY: "ENOTTY", syscall.EAGAIN: "EAGAIN", syscall.ENOEXEC: "ENOEXEC",
		syscall.EOPNOTSUPP: "EOPNOTSUPP", syscall.EBUSY: "EBUSY", syscall.ENOKEY: "ENOKEY", syscall.EIO: "EIO",
		syscall.EUSERS: "EUSERS", syscall.ENOSPC: "ENOSPC", syscall.ESTALE: "ESTALE", syscall.ENOTBLK: "ENOTBLK",
	}
	if name, ok := names[e]; ok {
		return name
	}
	return fmt.Sprintf("errno %d", int(e))
}

func calls() map[string]call {
	all := map[string]call{}
	for _, group := range []map[string]call{kernelCalls(), processCalls(), namespaceCalls(), abiCalls()} {
		for name, c := range group {
			all[name] = c
		}
	}
	return all
}
