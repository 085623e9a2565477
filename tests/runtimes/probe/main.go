// Command probe replaces the keeper as PID 1 of a sandbox and does what a test requests, one JSON line each way.
package main

import (
	"bufio"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

type request struct {
	Argv []string `json:"argv"` // run this and return its output
	UID  uint32   `json:"uid"`
	Read string   `json:"read"` // or read this file as PID 1
	List string   `json:"list"` // or list the links of this directory as PID 1
}

type answer struct {
	Code  int               `json:"code"`
	Out   string            `json:"out"`
	Error string            `json:"error"`
	Links map[string]string `json:"links"`
}

func main() {
	if len(os.Args) < 2 {
		os.Exit(64)
	}
	switch os.Args[1] {
	case "init":
		serve()
	case "calls":
		json.NewEncoder(os.Stdout).Encode(calls())
	case "foreign":
		foreign(os.Args[2])
	case "group":
		group()
	default:
		task(os.Args[1], os.Args[2:])
	}
}

func serve() {
	signal.Ignore(syscall.SIGHUP)
	syscall.CloseOnExec(3)
	listener, err := net.FileListener(os.NewFile(3, "door"))
	if err != nil {
		os.Exit(70)
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			os.Exit(71)
		}
		go talk(conn)
	}
}

func talk(conn net.Conn) {
	defer conn.Close()
	lines := bufio.NewReader(conn)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var asked request
		if json.Unmarshal(line, &asked) != nil {
			return
		}
		json.NewEncoder(conn).Encode(act(asked))
	}
}

func act(asked request) answer {
	if asked.Read != "" {
		data, err := os.ReadFile(asked.Read)
		return answer{Out: string(data), Error: text(err)}
	}
	if asked.List != "" {
		return links(asked.List)
	}
	command := exec.Command(asked.Argv[0], asked.Argv[1:]...)
	command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: asked.UID, Gid: asked.UID}}
	output, err := command.CombinedOutput()
	code := -1
	if command.ProcessState != nil {
		code = command.ProcessState.ExitCode()
	}
	return answer{Code: code, Out: string(output), Error: text(err)}
}

func links(path string) answer {
	entries, err := os.ReadDir(path)
	found := map[string]string{}
	for _, entry := range entries {
		target, _ := os.Readlink(path + "/" + entry.Name())
		found[entry.Name()] = target
	}
	return answer{Links: found, Error: text(err)}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
