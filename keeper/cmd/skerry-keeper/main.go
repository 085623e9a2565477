// GOMAXPROCS is always set, and a launcher starts often: the Go runtime need not read mounts and CPU limits at the start.
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command skerry-keeper is PID 1 of every sandbox, the launcher of its commands, its sudo, and the programs that an SSH
// connection runs inside: one static binary with several roles, because every sandbox carries it.
package main

import (
	"fmt"
	"os"

	"skerry/keeper/internal/build"
	"skerry/keeper/internal/keeper"
	"skerry/keeper/internal/launcher"
	"skerry/keeper/internal/relay"
	"skerry/keeper/internal/sftp"
	"skerry/keeper/internal/sudo"
)

func main() {
	os.Exit(run(os.Args))
}

func run(args []string) int {
	if sudo.Called(args) {
		return sudo.Run(args[1:])
	}
	if len(args) == 2 {
		switch args[1] {
		case "init":
			return keeper.Init()
		case "launcher":
			return launcher.Run()
		case "--version":
			fmt.Printf("skerry-keeper %s protocol %d\n", build.ID, build.Protocol)
			return 0
		}
	}
	if len(args) >= 2 {
		switch args[1] {
		case "sftp":
			return sftp.Run()
		case "dial":
			return relay.Dial(args[2:])
		case "listen":
			return relay.Listen(args[2:])
		}
	}
	fmt.Fprintln(os.Stderr, "usage: skerry-keeper init | launcher | sftp | dial | listen | --version")
	return 2
}
