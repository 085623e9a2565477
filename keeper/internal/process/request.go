// Package process runs commands: it hands them to launchers, moves their bytes, and says how they ended.
package process

import (
	"fmt"
	"path"
	"strings"
	"syscall"

	"skerry/keeper/internal/accounts"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/rights"
	"skerry/keeper/internal/spawn"
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
	Journal int64              `json:"journal"` // bytes of output kept; 0: as configured
	Show    *string            `json:"show"`    // what lists show instead of the command
	Session *string            `json:"session"`
	Pty     *Size              `json:"pty"`     // nil: no terminal
	Channel bool               `json:"channel"` // fd 3 is one, for turns
}

// Size is a terminal's, in characters.
type Size struct {
	Cols int `json:"cols"`
	Rows int `json:"rows"`
}

const maxSize = 10_000

// Valid says whether a terminal can be so large.
func (s Size) Valid() bool {
	return s.Cols >= 1 && s.Cols <= maxSize && s.Rows >= 1 && s.Rows <= maxSize
}

func (s Size) window() linux.Window { return linux.Window{Rows: uint16(s.Rows), Cols: uint16(s.Cols)} }

// Defaults is what the configuration gives to every command.
type Defaults struct {
	User      string
	Cwd       string
	Env       map[string]string
	OpenFiles uint32
	Processes uint32
}

// Refusal is an error of the caller's, with its stable code.
type Refusal struct{ Code, Message string }

func (r *Refusal) Error() string { return r.Message }

func refuse(code, format string, values ...any) error {
	return &Refusal{code, fmt.Sprintf(format, values...)}
}

const maxSession = 256

var shells = []string{"/bin/bash", "/usr/bin/bash", "/bin/sh", "/usr/bin/sh"}

// Shell is the program that shell lines run in, or "".
func Shell() string {
	for _, path := range shells {
		var st syscall.Stat_t
		if syscall.Stat(path, &st) == nil && st.Mode&syscall.S_IFMT == syscall.S_IFREG && st.Mode&0o111 != 0 {
			return path
		}
	}
	return ""
}

func (q *Request) check() error {
	if !validID(q.ID) {
		return refuse("bad_request", "id: not an id")
	}
	if (q.Shell == nil) == (len(q.Argv) == 0) {
		return refuse("bad_request", "give argv or shell, and not an empty one")
	}
	if q.Stdin != "" && q.Stdin != "none" && q.Stdin != "pipe" {
		return refuse("bad_request", "stdin: none or pipe")
	}
	if q.Timeout != nil && !(*q.Timeout > 0 && *q.Timeout <= 1e8) {
		return refuse("bad_request", "timeout_s: out of range")
	}
	if q.Journal < 0 {
		return refuse("bad_request", "journal: out of range")
	}
	if q.Pty != nil && !q.Pty.Valid() {
		return refuse("bad_request", "pty: 1 to 10000 columns and rows")
	}
	if q.Channel && (!q.Detach || q.Pty != nil || q.Stdin == "pipe") {
		return refuse("bad_request", "channel: only with detach, and without stdin and pty")
	}
	if q.Session != nil && len(*q.Session) > maxSession {
		return refuse("bad_request", "session: too long a name")
	}
	for _, word := range q.Argv {
		if strings.Contains(word, "\x00") {
			return refuse("bad_request", "argv: a NUL byte is not allowed")
		}
	}
	if q.Shell != nil && strings.Contains(*q.Shell, "\x00") {
		return refuse("bad_request", "shell: a NUL byte is not allowed")
	}
	return q.checkEnv()
}

func validID(id string) bool {
	return len(id) >= 3 && len(id) <= 64 && strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

func (q *Request) checkEnv() error {
	for name, value := range q.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || value != nil && strings.Contains(*value, "\x00") {
			return refuse("bad_request", "env: %q can't be set", name)
		}
	}
	return nil
}

// resolve turns a request into what a launcher needs: who, where, with which environment.
func (q *Request) resolve(d Defaults) (*spawn.Request, *accounts.User, error) {
	if err := q.check(); err != nil {
		return nil, nil, err
	}
	name := d.User
	if q.User != nil {
		name = *q.User
	}
	user, err := accounts.Find(name)
	if err != nil {
		return nil, nil, refuse("unknown_user", "there is no user %q in the sandbox", name)
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
		return nil, nil, refuse("bad_cwd", "cwd: a NUL byte is not allowed")
	}
	env, search := q.environment(d, user)
	r := &spawn.Request{
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
		return nil, refuse("no_shell", "there is no shell in the sandbox: give a list of arguments")
	}
	if path.Base(shell) == "bash" {
		return []string{shell, "-lc", line}, nil
	}
	return []string{shell, "-c", line}, nil
}

// checkDir tells, once a start has failed, whether it was the directory.
func checkDir(dir string, user *accounts.User) error {
	err := rights.Enter(user, dir)
	switch err {
	case nil:
		return nil
	case rights.ErrUser:
		return refuse("unknown_user", "user %s: %v", user.Name, err)
	}
	return refuse("bad_cwd", "cwd: %s: %v", dir, err)
}

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
		search = "/usr/bin:/bin" // what execvp takes; an empty one would be the current directory
	}
	return env, search
}
