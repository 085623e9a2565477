package sudo

import (
	"fmt"
	"os"
	"os/signal"
	"path"
	"strings"
	"syscall"

	"skerry/keeper/internal/accounts"
	"skerry/keeper/internal/build"
	"skerry/keeper/internal/launchproto"
)

// Socket is the keeper's socket inside the sandbox.
const Socket = "/run/skerry/sudo.sock"

var forwarded = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM,
	syscall.SIGCONT,
}

// Run is the client. It returns the exit code.
func Run(args []string) int {
	o, err := parse(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	switch o.action {
	case doNothing:
		return 0
	case listRights:
		fmt.Println("You may run the following commands in this sandbox:\n    (ALL) NOPASSWD: ALL")
		return 0
	case showVersion:
		fmt.Println("Sudo for Skerry sandboxes, keeper " + build.ID)
		return 0
	case showHelp:
		fmt.Println(errUsage)
		return 0
	}
	return ask(o)
}

// ask sends the command to the keeper and waits for its end.
func ask(o *options) int {
	fd, err := dial()
	if err != nil {
		return fail("not available in this sandbox: " + err.Error())
	}
	request, shell, err := prepare(o)
	if err != nil {
		return fail(err.Error())
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded...) // before the command can run, so that no signal is lost
	passed := stdio()
	terminal := newRelay()
	if terminal != nil {
		request.Terminal, passed = 1, terminal.stdio()
	}
	message := request.Encode()
	sent, err := syscall.SendmsgN(fd, message, syscall.UnixRights(passed...), nil, syscall.MSG_NOSIGNAL)
	conn := os.NewFile(uintptr(fd), "keeper")
	if err == nil && sent < len(message) {
		_, err = conn.Write(message[sent:])
	}
	if err != nil {
		return fail("the keeper does not answer: " + err.Error())
	}
	go forward(conn, signals)
	if terminal == nil {
		return await(conn, o, shell)()
	}
	terminal.begin()
	finish := await(conn, o, shell)
	terminal.end()
	return finish()
}

func dial() (int, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	return fd, syscall.Connect(fd, &syscall.SockaddrUnix{Name: Socket})
}

// stdio returns the client's three fds, with /dev/null in place of closed ones.
func stdio() []int {
	fds := []int{0, 1, 2}
	for i := range fds {
		var st syscall.Stat_t
		if syscall.Fstat(i, &st) != nil {
			if fd, err := syscall.Open("/dev/null", syscall.O_RDWR|syscall.O_CLOEXEC, 0); err == nil {
				fds[i] = fd
			}
		}
	}
	return fds
}

func prepare(o *options) (*launchproto.Request, string, error) {
	target, err := accounts.Find(o.user)
	if err != nil {
		return nil, "", fmt.Errorf("unknown user: %s", o.user)
	}
	dir, err := os.Getwd()
	if err != nil || o.login {
		dir = target.Home
	}
	argv := o.argv(target.Shell)
	r := &launchproto.Request{Kind: launchproto.Start, User: o.user, Dir: dir, Argv: argv, Env: environment(o, os.Environ())}
	return r, argv[0], nil
}

// environment returns the variables that the caller keeps or sets; the keeper puts them over the target user's own.
func environment(o *options, mine []string) (env []string) {
	for _, entry := range mine {
		name, _, _ := strings.Cut(entry, "=")
		if kept(o, name) {
			env = append(env, entry)
		}
	}
	return append(env, o.assign...)
}

func kept(o *options, name string) bool {
	switch name {
	case "PATH", "USER", "LOGNAME", "SHELL", "MAIL":
		return false
	case "TERM", "COLORTERM", "LANG", "LANGUAGE", "TZ", "DEBIAN_FRONTEND":
		return true
	case "HOME":
		return o.keepEnv && !o.setHome && !o.login
	}
	for _, wanted := range o.keep {
		if wanted == name {
			return true
		}
	}
	return o.keepEnv || strings.HasPrefix(name, "LC_")
}

func forward(conn *os.File, signals <-chan os.Signal) {
	for s := range signals {
		number, _ := s.(syscall.Signal)
		r := launchproto.Request{Kind: launchproto.Signal, Signal: uint32(number)}
		_, _ = conn.Write(r.Encode())
	}
}

// await waits for the command's end and returns a function that ends this process in the same way.
func await(conn *os.File, o *options, name string) func() int {
	for {
		e, err := launchproto.ReadEvent(conn)
		if err != nil {
			return func() int { return fail("the connection to the keeper was lost") }
		}
		switch e.Kind {
		case launchproto.Exited:
			return func() int { return mirror(syscall.WaitStatus(e.Value)) }
		case launchproto.Failed:
			return func() int { return cannot(name, syscall.Errno(e.Value)) }
		case launchproto.Refused:
			return func() int { return fail(reason(e.Value, o)) }
		}
	}
}

func fail(why string) int {
	fmt.Fprintln(os.Stderr, "sudo: "+why)
	return 1
}

func cannot(name string, errno syscall.Errno) int {
	message := name + ": " + errno.Error()
	if errno == syscall.ENOENT {
		message = path.Clean(name) + ": command not found"
	}
	return fail(message)
}

func reason(code uint32, o *options) string {
	switch code {
	case launchproto.NotAllowed:
		me, err := accounts.Find(fmt.Sprint(os.Getuid()))
		if err != nil {
			return "you are not in the sudoers file"
		}
		return me.Name + " is not in the sudoers file"
	case launchproto.UnknownUser:
		return "unknown user: " + o.user
	case launchproto.BadDirectory:
		return "the current directory is not accessible to " + o.user
	}
	return "only commands that the keeper started may use sudo"
}

func mirror(status syscall.WaitStatus) int {
	if !status.Signaled() {
		return status.ExitStatus()
	}
	s := status.Signal()
	signal.Reset(s)
	_ = syscall.Kill(os.Getpid(), s)
	return 128 + int(s)
}
