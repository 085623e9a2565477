package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
)

func task(name string, args []string) {
	switch name {
	case "cat":
		data, err := os.ReadFile(args[0])
		fmt.Print(string(data), text(err))
	case "chmod":
		fmt.Println(bare(os.Chmod(args[0], 0o600)))
	case "look":
		look(args[0])
	case "write":
		write(args[0])
	case "serve":
		serveOnce(args[0])
	case "listen":
		listen(args[0])
	case "terminal":
		terminal()
	case "cores":
		cores()
	case "trace":
		trace()
	case "own":
		own()
	case "setuid":
		fmt.Println(bare(os.WriteFile(args[0], []byte("#!/bin/sh\n"), 0o755)), bare(os.Chmod(args[0], os.ModeSetuid|0o755)))
	case "touch":
		fmt.Println(bare(os.WriteFile(args[0], []byte("inside\n"), 0o644)))
	case "rename":
		fmt.Println(bare(os.Rename(args[0], args[1])))
	case "link":
		fmt.Println(bare(os.RemoveAll(args[1])), bare(os.Symlink(args[0], args[1])))
	case "eat":
		eat()
	case "forks":
		forks()
	case "secrets":
		secrets()
	case "wait":
		select {}
	default:
		os.Exit(64)
	}
}

// bare returns an error without the path and call that Go prepends.
func bare(err error) string {
	switch e := err.(type) {
	case nil:
		return "ok"
	case *os.PathError:
		return e.Err.Error()
	case *os.LinkError:
		return e.Err.Error()
	}
	return err.Error()
}

func look(path string) {
	if entries, err := os.ReadDir(path); err == nil {
		fmt.Println(len(entries), "entries")
		return
	}
	file, err := os.Open(path)
	if err != nil {
		fmt.Println(bare(err))
		return
	}
	read, _ := io.Copy(io.Discard, io.LimitReader(file, 4096))
	fmt.Println(read, "bytes")
}

func write(path string) {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		fmt.Println(bare(err))
		return
	}
	if stat, err := file.Stat(); err == nil && stat.Mode()&os.ModeCharDevice != 0 {
		fmt.Println("written to null")
		return
	}
	_, err = file.WriteString("1")
	fmt.Println("write:", bare(err))
}

func listen(port string) {
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	for err == nil {
		var conn net.Conn
		if conn, err = listener.Accept(); err == nil {
			conn.Close()
		}
	}
	fmt.Println(err)
}

func serveOnce(port string) {
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		fmt.Println(err)
		return
	}
	go func() {
		if conn, err := listener.Accept(); err == nil {
			fmt.Fprintln(conn, "hello")
			conn.Close()
		}
	}()
	conn, err := net.Dial("tcp", "127.0.0.1:"+port)
	if err != nil {
		fmt.Println(err)
		return
	}
	io.Copy(os.Stdout, conn)
}

func cores() {
	err := syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{Cur: 0, Max: 0})
	var now syscall.Rlimit
	syscall.Getrlimit(syscall.RLIMIT_CORE, &now)
	fmt.Printf("set: %v, still %d %d\n", err, now.Cur, now.Max)
}

// trace uses PTRACE_TRACEME: stop at exec, read and write one word, continue to the end.
func trace() {
	runtime.LockOSThread()
	child := exec.Command("/proc/self/exe", "touch", "/dev/null")
	child.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := child.Start(); err != nil {
		fmt.Println("start:", err)
		return
	}
	var status syscall.WaitStatus
	syscall.Wait4(child.Process.Pid, &status, 0, nil)
	var regs syscall.PtraceRegs
	if err := syscall.PtraceGetRegs(child.Process.Pid, &regs); err != nil {
		fmt.Println("registers:", err)
		return
	}
	word := make([]byte, 8)
	if _, err := syscall.PtracePeekData(child.Process.Pid, uintptr(regs.PC()), word); err != nil {
		fmt.Println("memory:", err)
		return
	}
	syscall.PtraceCont(child.Process.Pid, 0)
	for {
		if _, err := syscall.Wait4(child.Process.Pid, &status, 0, nil); err != nil || status.Exited() {
			break
		}
		syscall.PtraceCont(child.Process.Pid, int(status.StopSignal()))
	}
	fmt.Println("traced to its end")
}

// own acts like apt: it gives a file to _apt, becomes _apt with its groups, reads the file, and must not be able to
// return.
func own() {
	const user = 100
	path := "/tmp/for-apt"
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		fmt.Println("write:", err)
		return
	}
	if err := os.Chown(path, user, user); err != nil {
		fmt.Println("chown:", err)
		return
	}
	command := exec.Command("/proc/self/exe", "cat", path)
	command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user, Groups: []uint32{user}}}
	output, err := command.Output()
	if err != nil || string(output) != "x" {
		fmt.Println("as _apt:", string(output), err)
		return
	}
	fmt.Println("chowned, switched and read")
}

// eat allocates memory until it fails.
func eat() {
	var kept [][]byte
	for n := 0; n < 4096; n++ {
		block := make([]byte, 1<<20)
		for i := range block {
			block[i] = byte(i)
		}
		kept = append(kept, block)
	}
	fmt.Println("ate", len(kept), "MiB")
}

// forks starts children until the limit stops it.
func forks() {
	started := 0
	for n := 0; n < 1000; n++ {
		if exec.Command("/proc/self/exe", "wait").Start() != nil {
			break
		}
		started++
	}
	fmt.Println(started)
}

// secrets lists everything that PID 1 could have left within reach.
func secrets() {
	open := []int{}
	for fd := 0; fd < 64; fd++ {
		link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		if err == nil && !strings.HasPrefix(link, "anon_inode:") { // Go's own epoll
			open = append(open, fd)
		}
	}
	fmt.Println("fds", open)
	for _, path := range []string{"/proc/1/mem", "/proc/1/environ", "/proc/1/fd/3"} {
		_, err := os.OpenFile(path, os.O_RDONLY, 0)
		fmt.Println(path, bare(err))
	}
	fmt.Println("ptrace", bare(syscall.PtraceAttach(1)))
}
