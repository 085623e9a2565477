package keeper

import (
	"errors"
	"strconv"
	"strings"
	"syscall"

	"skerry/keeper/internal/accounts"
	"skerry/keeper/internal/files"
	"skerry/keeper/internal/glob"
	"skerry/keeper/internal/grep"
	"skerry/keeper/internal/rights"
	"skerry/keeper/internal/watch"
	"skerry/keeper/internal/wire"
)

// fileCall is one call to /v1/files…: its arguments are in the query, because paths need not be UTF-8.
type fileCall struct {
	*pulse
	q    *wire.Request
	area *files.Area
	path string
	all  *watch.Set
}

var fileRoutes = map[string]func(*fileCall) error{
	"GET /v1/files":          (*fileCall).read,
	"PUT /v1/files":          (*fileCall).write,
	"DELETE /v1/files":       (*fileCall).remove,
	"GET /v1/files/stat":     (*fileCall).stat,
	"GET /v1/files/list":     (*fileCall).list,
	"GET /v1/files/checksum": (*fileCall).checksum,
	"GET /v1/files/changed":  (*fileCall).changed,
	"GET /v1/files/lines":    (*fileCall).lines,
	"GET /v1/files/search":   (*fileCall).search,
	"POST /v1/files/mkdir":   (*fileCall).mkdir,
	"POST /v1/files/move":    (*fileCall).move,
	"POST /v1/files/copy":    (*fileCall).copy,
	"POST /v1/files/chmod":   (*fileCall).chmod,
	"POST /v1/files/chown":   (*fileCall).chown,
	"POST /v1/files/link":    (*fileCall).link,
	"POST /v1/files/replace": (*fileCall).replace,
	"POST /v1/files/patch":   (*fileCall).patch,
	"GET /v1/files/tree":     func(f *fileCall) error { return pack(f.c, f.q, f.area, f.path) },
	"PUT /v1/files/tree":     func(f *fileCall) error { return unpack(f.c, f.q, f.area, f.path) },
	"GET /v1/files/watch":    (*fileCall).watch,
}

// file serves /v1/files…
func (k *keeper) file(c *wire.Conn, q *wire.Request, conf *config, route string) {
	serve := fileRoutes[route]
	if serve == nil {
		c.Fail(404, "no_route", "there is no "+route)
		return
	}
	area := k.area(c, conf, q.Query.Get("user"), q.Query.Has("user"))
	if area == nil {
		return
	}
	f := &fileCall{pulse: newPulse(c), q: q, area: area, path: q.Query.Get("path"), all: &k.watches}
	area.Pulse = f.beat
	if err := serve(f); err != nil {
		f.failed(err)
	}
}

func (k *keeper) area(c *wire.Conn, conf *config, name string, given bool) *files.Area {
	if !given {
		name = conf.user()
	}
	user, err := accounts.Find(name)
	if err != nil {
		c.Fail(400, "unknown_user", "there is no user "+strconv.Quote(name)+" in the sandbox")
		return nil
	}
	return &files.Area{User: user, Cwd: conf.Cwd}
}

// inTurn does what may take long, because it goes through a whole tree or file, when there is room for it.
func (f *fileCall) inTurn(long bool, work func() error) error {
	if long {
		if err := f.enter(); err != nil {
			return err
		}
		defer f.leave()
	}
	return work()
}

func (f *fileCall) flag(name string) bool { return f.q.Query.Get(name) == "1" }

// number reads an argument between 0 and most; one that is not given is the usual one.
func (f *fileCall) number(name string, usual, most int) (int, error) {
	text := f.q.Query.Get(name)
	if text == "" {
		return usual, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > most {
		return 0, badArgument(name)
	}
	return n, nil
}

// badArgument is the error for a call that makes no sense.
type badArgument string

func (b badArgument) Error() string { return string(b) + ": it makes no sense" }

var statuses = map[syscall.Errno]int{
	syscall.ENOENT: 404, syscall.EACCES: 403, syscall.EPERM: 403, syscall.EROFS: 403, syscall.EEXIST: 409,
	syscall.ENOTEMPTY: 409, syscall.EISDIR: 409, syscall.ENOTDIR: 409, syscall.ENOSPC: 507, syscall.EDQUOT: 507,
}

// failed answers with the error that a call met.
func (f *fileCall) failed(err error) {
	var bad badArgument
	var pattern *grep.Bad
	switch {
	case errors.Is(err, files.ErrGone):
		f.c.End()
	case errors.Is(err, rights.ErrUser):
		f.fail(400, wire.Failure{Code: "unknown_user", Message: err.Error()})
	case errors.Is(err, accounts.ErrUnknown):
		f.fail(400, wire.Failure{Code: "unknown_user", Message: "there is no such user or group in the sandbox"})
	case errors.As(err, &bad), errors.As(err, &pattern), errors.Is(err, files.ErrAlgorithm),
		errors.Is(err, glob.ErrPattern):
		f.fail(400, wire.Failure{Code: "bad_request", Message: err.Error()})
	case f.misfit(err):
	default:
		f.failedAt(err)
	}
}

// about is the path that an error has to do with, as it can be shown.
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

func (f *fileCall) failedAt(err error) {
	path := f.about(err)
	var below *files.At
	if errors.As(err, &below) {
		err = below.Err
	}
	said := wire.Failure{Code: "errno", Message: path + ": " + err.Error(), Errno: int(syscall.EIO), Path: &path}
	status := 400
	var errno syscall.Errno
	var odd *files.NotRegular
	switch {
	case errors.As(err, &errno):
		said.Errno = int(errno)
		if s, ok := statuses[errno]; ok {
			status = s
		}
	case errors.As(err, &odd):
		said.Errno = int(syscall.EINVAL)
	}
	f.fail(status, said)
}
