package keeper

import (
	"errors"
	"strconv"
	"strings"
	"syscall"

	"skerry/keeper/internal/accounts"
	"skerry/keeper/internal/asuser"
	"skerry/keeper/internal/files"
	"skerry/keeper/internal/grep"
	"skerry/keeper/internal/httpwire"
	"skerry/keeper/internal/match/glob"
	"skerry/keeper/internal/watch"
)

// fileCall is one call to /v1/files…. Its arguments are in the query, because paths need not be UTF-8.
type fileCall struct {
	*heartbeat
	q    *httpwire.Request
	fs   *files.UserFS
	path string
	all  *watch.Set
}

// onFile makes a handler from a function that works on files with the rights of the user in the query.
func onFile(serve func(*fileCall) error) handler {
	return func(k *keeper, c *httpwire.Conn, q *httpwire.Request) {
		fs := k.userFS(c, q.Query.Get("user"), q.Query.Has("user"))
		if fs == nil {
			return
		}
		f := &fileCall{heartbeat: newHeartbeat(c), q: q, fs: fs, path: q.Query.Get("path"), all: &k.watches}
		fs.Heartbeat = f.beat
		if err := serve(f); err != nil {
			f.failed(err)
		}
	}
}

// userFS returns file access for the named user, by default the configured one. When it returns nil, it has already
// responded.
func (k *keeper) userFS(c *httpwire.Conn, name string, given bool) *files.UserFS {
	conf := k.current()
	if !given {
		name = conf.user()
	}
	user, err := accounts.Find(name)
	if err != nil {
		c.Fail(400, "unknown_user", "user "+strconv.Quote(name)+" not found in the sandbox")
		return nil
	}
	return &files.UserFS{User: user, Cwd: conf.Cwd}
}

// whenFree runs work. Long work, on a whole tree or file, waits until fewer than maxLongCalls are running.
func (f *fileCall) whenFree(long bool, work func() error) error {
	if long {
		if err := f.enter(); err != nil {
			return err
		}
		defer f.leave()
	}
	return work()
}

func (f *fileCall) flag(name string) bool { return f.q.Query.Get(name) == "1" }

// number parses an argument between 0 and limit; fallback is its default.
func (f *fileCall) number(name string, fallback, limit int) (int, error) {
	text := f.q.Query.Get(name)
	if text == "" {
		return fallback, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > limit {
		return 0, badArgument(name)
	}
	return n, nil
}

// badArgument names the argument that is not valid.
type badArgument string

func (b badArgument) Error() string { return string(b) + ": invalid argument" }

var statuses = map[syscall.Errno]int{
	syscall.ENOENT: 404, syscall.EACCES: 403, syscall.EPERM: 403, syscall.EROFS: 403, syscall.EEXIST: 409,
	syscall.ENOTEMPTY: 409, syscall.EISDIR: 409, syscall.ENOTDIR: 409, syscall.ENOSPC: 507, syscall.EDQUOT: 507,
}

// failed responds with the error of a call.
func (f *fileCall) failed(err error) {
	var bad badArgument
	var pattern *grep.Bad
	switch {
	case errors.Is(err, files.ErrHungUp):
		f.c.End()
	case errors.Is(err, asuser.ErrUser):
		f.fail(400, httpwire.Failure{Code: "unknown_user", Message: err.Error()})
	case errors.Is(err, accounts.ErrUnknown):
		f.fail(400, httpwire.Failure{Code: "unknown_user", Message: "user or group not found in the sandbox"})
	case errors.As(err, &bad), errors.As(err, &pattern), errors.Is(err, files.ErrAlgorithm),
		errors.Is(err, glob.ErrPattern):
		f.fail(400, httpwire.Failure{Code: "bad_request", Message: err.Error()})
	case f.failEdit(err):
	default:
		f.failedAt(err)
	}
}

// about returns the path that an error concerns, in a printable form.
func (f *fileCall) about(err error) string {
	path := f.path
	var below *files.At
	var target *files.Target
	switch {
	case errors.As(err, &below):
		path = strings.TrimRight(path, "/") + "/" + below.Path
	case errors.As(err, &target):
		path = f.q.Query.Get("to")
	}
	return strings.ToValidUTF8(path[:min(len(path), maxPathShown)], "\uFFFD")
}

// failedAt responds with a kernel error and its path; the status follows from the errno.
func (f *fileCall) failedAt(err error) {
	path := f.about(err)
	var below *files.At
	if errors.As(err, &below) {
		err = below.Err
	}
	failure := httpwire.Failure{Code: "errno", Message: path + ": " + err.Error(), Errno: int(syscall.EIO), Path: &path}
	status := 400
	var errno syscall.Errno
	var notRegular *files.NotRegular
	switch {
	case errors.As(err, &errno):
		failure.Errno = int(errno)
		if s, ok := statuses[errno]; ok {
			status = s
		}
	case errors.As(err, &notRegular):
		failure.Errno = int(syscall.EINVAL)
	}
	f.fail(status, failure)
}
