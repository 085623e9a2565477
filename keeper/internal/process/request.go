// Package process runs commands: it passes them to launchers, moves their bytes, and reports their exit.
//
// Everything that a process prints goes to its journal first; readers read from there. A run's own reader is paced: the
// program waits for it, so nothing is lost, and if its connection drops the command is killed with its tree. A spawned
// process waits for no reader.
//
// A spawned program may have a channel, a socket pair on fd 3, over which it exchanges messages with the host. A
// message never overtakes earlier output: the pump of the channel first records everything that the other pipes hold.
//
// A terminal's other end is obtained with TIOCGPTPEER, so no path inside has to be trusted. The list of processes is
// stored beside the journals and survives a stop of the sandbox.
package process

import (
	"fmt"
	"path"
	"strings"
	"syscall"

	"skerry/keeper/internal/accounts"
	"skerry/keeper/internal/asuser"
	"skerry/keeper/internal/launchproto"
	"skerry/keeper/internal/linux"
)

// Request is the body of POST /v1/processes.
type Request struct {
	ID      string             `json:"id"`
	Argv    []string           `json:"argv"`
	Shell   *string            `json:"shell"`
	Env     map[string]*string `json:"env"`
	Cwd     *string            `json:"cwd"`
	User    *string            `json:"user"`
	Stdin   string             `json:"stdin"`
	Timeout *float64           `json:"timeout_s"`
	Detach  bool               `json:"detach"`
	Journal int64              `json:"journal"` // bytes of output to keep; 0: as configured
	Show    *string            `json:"show"`    // text for lists instead of the command
	Session *string            `json:"session"`
	Pty     *Size              `json:"pty"`     // nil: no terminal
	Channel bool               `json:"channel"` // fd 3 is a channel for exchanges
	Remove  bool               `json:"auto_remove"`
}

// Size is the size of a terminal in characters.
type Size struct {
	Cols int `json:"cols"`
	Rows int `json:"rows"`
}

const maxSize = 10_000

// Valid reports whether a terminal can have this size.
func (s Size) Valid() bool {
	return s.Cols >= 1 && s.Cols <= maxSize && s.Rows >= 1 && s.Rows <= maxSize
}

func (s Size) window() linux.Window { return linux.Window{Rows: uint16(s.Rows), Cols: uint16(s.Cols)} }

// Defaults are the configured properties of every command.
type Defaults struct {
	User      string
	Cwd       string
	Env       map[string]string
	OpenFiles uint32
	Processes uint32
}

// RequestError is a fault of the caller, with its stable code.
type RequestError struct{ Code, Message string }

func (r *RequestError) Error() string { return r.Message }

func reject(code, format string, values ...any) error {
	return &RequestError{code, fmt.Sprintf(format, values...)}
}

const maxSession = 256

var shells = []string{"/bin/bash", "/usr/bin/bash", "/bin/sh", "/usr/bin/sh"}

// Shell returns the program that runs shell lines, or "".
func Shell() string {
	for _, path := range shells {
		var st syscall.Stat_t
		if syscall.Stat(path, &st) == nil && st.Mode&syscall.S_IFMT == syscall.S_IFREG && st.Mode&0o111 != 0 {
			return path
		}
	}
	return ""
}

// check rejects requests that cannot be executed.
func (q *Request) check() error {
	if !validID(q.ID) {
		return reject("bad_request", "id: invalid process ID")
	}
	if (q.Shell == nil) == (len(q.Argv) == 0) {
		return reject("bad_request", "set either argv or shell, not empty")
	}
	if q.Stdin != "" && q.Stdin != "none" && q.Stdin != "pipe" {
		return reject("bad_request", "stdin: must be none or pipe")
	}
	if q.Timeout != nil && !(*q.Timeout > 0 && *q.Timeout <= 1e8) {
		return reject("bad_request", "timeout_s: out of range")
	}
	if q.Journal < 0 {
		return reject("bad_request", "journal: out of range")
	}
	if q.Pty != nil && !q.Pty.Valid() {
		return reject("bad_request", "pty: cols and rows must be 1 to 10000")
	}
	if q.Channel && (!q.Detach || q.Pty != nil || q.Stdin == "pipe") {
		return reject("bad_request", "channel: requires detach, without stdin and pty")
	}
	if q.Session != nil && len(*q.Session) > maxSession {
		return reject("bad_request", "session: the name is too long")
	}
	for _, word := range q.Argv {
		if strings.Contains(word, "\x00") {
			return reject("bad_request", "argv: NUL bytes are not allowed")
		}
	}
	if q.Shell != nil && strings.Contains(*q.Shell, "\x00") {
		return reject("bad_request", "shell: NUL bytes are not allowed")
	}
	return q.checkEnv()
}

func validID(id string) bool {
	return len(id) >= 3 && len(id) <= 64 && strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

func (q *Request) checkEnv() error {
	for name, value := range q.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || value != nil && strings.Contains(*value, "\x00") {
			return reject("bad_request", "env: invalid name or value: %q", name)
		}
	}
	return nil
}

// resolve turns a request into the launcher's form: user, directory, environment.
func (q *Request) resolve(d Defaults) (*launchproto.Request, *accounts.User, error) {
	if err := q.check(); err != nil {
		return nil, nil, err
	}
	name := d.User
	if q.User != nil {
		name = *q.User
	}
	user, err := accounts.Find(name)
	if err != nil {
		return nil, nil, reject("unknown_user", "user %q not found in the sandbox", name)
	}
	argv := q.Argv
	if q.Shell != nil {
		if argv, err = shellLine(*q.Shell); err != nil {
			return nil, nil, err
		}
	}
	dir := d.Cwd
	if q.Cwd != nil {
		dir = path.Join(d.Cwd, *q.Cwd)
		if path.IsAbs(*q.Cwd) {
			dir = *q.Cwd
		}
	}
	if strings.Contains(dir, "\x00") {
		return nil, nil, reject("bad_cwd", "cwd: NUL bytes are not allowed")
	}
	env, search := q.environment(d, user)
	r := &launchproto.Request{
		UID: user.UID, GID: user.GID, Groups: user.Groups, OpenFiles: d.OpenFiles, Processes: d.Processes, Dir: dir,
		Path: search, Argv: argv, Env: env,
	}
	if q.Pty != nil {
		r.Terminal = 1
	}
	return r, user, nil
}

func shellLine(line string) ([]string, error) {
	shell := Shell()
	if shell == "" {
		return nil, reject("no_shell", "the sandbox has no shell: pass a list of arguments")
	}
	if path.Base(shell) == "bash" {
		return []string{shell, "-lc", line}, nil
	}
	return []string{shell, "-c", line}, nil
}

// checkDir reports, after a failed start, whether the directory was the cause.
func checkDir(dir string, user *accounts.User) error {
	err := asuser.Enter(user, dir)
	switch err {
	case nil:
		return nil
	case asuser.ErrUser:
		return reject("unknown_user", "user %s: %v", user.Name, err)
	}
	return reject("bad_cwd", "cwd: %s: %v", dir, err)
}

// environment combines the user's variables, the sandbox's and the request's, in this order; null removes one.
func (q *Request) environment(d Defaults, user *accounts.User) (env []string, search string) {
	all := user.Environment()
	if q.Pty != nil {
		all["TERM"] = "xterm-256color"
	}
	for name, value := range d.Env {
		all[name] = value
	}
	for name, value := range q.Env {
		if value == nil {
			delete(all, name)
		} else {
			all[name] = *value
		}
	}
	for name, value := range all {
		env = append(env, name+"="+value)
	}
	search, ok := all["PATH"]
	if !ok {
		search = "/usr/bin:/bin" // the default of execvp; an empty one would mean the current directory
	}
	return env, search
}
