// Package sudo implements both ends of `sudo` inside a sandbox. The real sudo cannot work under no_new_privs.
//
// The client is the same binary, linked as /run/skerry/bin/sudo (and from /usr/local/bin if the image has none). It
// sends argv, environment, cwd and its stdio to /run/skerry/sudo.sock. The keeper asks the kernel for the caller's
// identity (SO_PEERCRED), admits root and the configured user, finds the caller's launcher by its cgroup (without one,
// among its ancestors), and forks the command from that launcher: it shares the caller's cgroup and is killed with it.
// If the launcher has moved, a new one joins the group, forks, and ends. Signals are forwarded and the exit is
// mirrored.
//
// At a terminal the client makes another one for the command, as sudo does (use_pty), because a shell must control its
// terminal and the caller's already has a controlling process. This happens only if all of stdio is the terminal and
// the client is in its foreground.
//
// The server does nothing else. A request is bounded to 1 MiB and 5 seconds, and 64 run at a time.
package sudo

import (
	"errors"
	"path"
	"strings"
)

type action int

const (
	runCommand action = iota
	doNothing         // -v, -k: no password to remember
	listRights
	showVersion
	showHelp
)

// options is a parsed sudo command line.
type options struct {
	action  action
	user    string
	login   bool // -i
	shell   bool // -s
	keepEnv bool // -E
	setHome bool // -H
	keep    []string
	assign  []string // VAR=value before the command
	command []string
}

var errUsage = errors.New("usage: sudo [-EHiknSsv] [-u user] [VAR=value] [--] command [argument ...]")

// parse reads a command line without its first word.
func parse(args []string) (*options, error) {
	o := &options{user: "root"}
	for len(args) > 0 {
		arg := args[0]
		if arg == "--" {
			args = args[1:]
			break
		}
		if len(arg) < 2 || arg[0] != '-' {
			break
		}
		args = args[1:]
		var err error
		if strings.HasPrefix(arg, "--") {
			args, err = o.long(arg[2:], args)
		} else {
			args, err = o.short(arg[1:], args)
		}
		if err != nil {
			return nil, err
		}
	}
	for len(args) > 0 && strings.IndexByte(args[0], '=') > 0 {
		o.assign = append(o.assign, args[0])
		args = args[1:]
	}
	o.command = args
	if o.action == runCommand && len(args) == 0 && !o.login && !o.shell {
		return nil, errUsage
	}
	return o, nil
}

// flag applies an option that takes no value.
func (o *options) flag(name string) bool {
	switch name {
	case "n", "non-interactive", "S", "stdin", "A", "askpass", "B", "bell", "P", "preserve-groups":
	case "E", "preserve-env":
		o.keepEnv = true
	case "H", "set-home":
		o.setHome = true
	case "i", "login":
		o.login = true
	case "s", "shell":
		o.shell = true
	case "k", "reset-timestamp", "K", "remove-timestamp", "v", "validate":
		o.action = max(o.action, doNothing)
	case "l", "list":
		o.action = listRights
	case "V", "version":
		o.action = showVersion
	case "h", "help":
		o.action = showHelp
	default:
		return false
	}
	return true
}

// value applies an option that takes a value.
func (o *options) value(name, value string) bool {
	switch name {
	case "u", "user":
		o.user = strings.TrimPrefix(value, "#")
	case "p", "prompt", "C", "close-from":
	default:
		return false
	}
	return true
}

// short parses a word of single-letter options; the last one may take the next word as its value.
func (o *options) short(letters string, rest []string) ([]string, error) {
	for i, letter := range letters {
		name := string(letter)
		if o.flag(name) {
			continue
		}
		value := letters[i+len(name):]
		if value == "" {
			if len(rest) == 0 {
				return nil, errUsage
			}
			value, rest = rest[0], rest[1:]
		}
		if !o.value(name, value) {
			return nil, errUsage
		}
		break
	}
	return rest, nil
}

func (o *options) long(word string, rest []string) ([]string, error) {
	name, value, given := strings.Cut(word, "=")
	switch {
	case name == "preserve-env" && given:
		o.keep = append(o.keep, strings.Split(value, ",")...)
	case !given && o.flag(name):
	case given && o.value(name, value):
	case !given && len(rest) > 0 && o.value(name, rest[0]):
		rest = rest[1:]
	default:
		return nil, errUsage
	}
	return rest, nil
}

// argv returns the command, wrapped in the shell of -i or -s.
func (o *options) argv(shell string) []string {
	if !o.login && !o.shell {
		return o.command
	}
	argv := []string{shell}
	if o.login {
		argv = append(argv, "-l")
	}
	if len(o.command) > 0 {
		argv = append(argv, "-c", quote(o.command))
	}
	return argv
}

// quote escapes like sudo: every character except plain ones gets a backslash.
func quote(words []string) string {
	var b strings.Builder
	for i, word := range words {
		if i > 0 {
			b.WriteByte(' ')
		}
		for j := range len(word) {
			c := word[j]
			plain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c >= 0x80
			if !plain && !strings.ContainsRune("_-$./", rune(c)) {
				b.WriteByte('\\')
			}
			b.WriteByte(c)
		}
	}
	return b.String()
}

// Called reports whether the binary was called as sudo.
func Called(args []string) bool { return len(args) > 0 && path.Base(args[0]) == "sudo" }
