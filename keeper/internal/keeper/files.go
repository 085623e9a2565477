package keeper

import (
	"encoding/json"
	"errors"
	"io"
	"math"
	"strconv"
	"strings"
	"syscall"

	"skerry/keeper/internal/accounts"
	"skerry/keeper/internal/files"
	"skerry/keeper/internal/rights"
	"skerry/keeper/internal/wire"
)

const maxListing = 24 << 20 // the host takes 32 MiB

// file serves /v1/files…
func (k *keeper) file(c *wire.Conn, q *wire.Request, conf *config, route string) {
	if route == "POST /v1/files/mkdir" {
		k.mkdir(c, q, conf)
		return
	}
	path := q.Query.Get("path")
	area := k.area(c, conf, q.Query.Get("user"), q.Query.Has("user"))
	if area == nil {
		return
	}
	var err error
	switch route {
	case "GET /v1/files":
		err = read(c, q, area, path)
	case "PUT /v1/files":
		err = write(c, q, area, path)
	case "DELETE /v1/files":
		if err = area.Remove(path, q.Query.Get("recursive") == "1"); err == nil {
			c.JSON(200, struct{}{})
		}
	case "GET /v1/files/stat":
		var info *files.Info
		if info, err = area.Stat(path); err == nil {
			c.JSON(200, info)
		}
	case "GET /v1/files/list":
		err = list(c, area, path)
	case "GET /v1/files/tree":
		err = pack(c, q, area, path)
	case "PUT /v1/files/tree":
		err = unpack(c, q, area, path)
	default:
		c.Fail(404, "no_route", "there is no "+route)
	}
	if err != nil {
		failFile(c, path, err)
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

var statuses = map[syscall.Errno]int{
	syscall.ENOENT: 404, syscall.EACCES: 403, syscall.EPERM: 403, syscall.EROFS: 403, syscall.EEXIST: 409,
	syscall.ENOTEMPTY: 409, syscall.EISDIR: 409, syscall.ENOTDIR: 409, syscall.ENOSPC: 507, syscall.EDQUOT: 507,
}

func failFile(c *wire.Conn, path string, err error) {
	if errors.Is(err, rights.ErrUser) {
		c.Fail(400, "unknown_user", err.Error())
		return
	}
	path = strings.ToValidUTF8(path, "\uFFFD")
	f := wire.Failure{Code: "errno", Message: path + ": " + err.Error(), Errno: int(syscall.EIO), Path: &path}
	status := 400
	var errno syscall.Errno
	var odd *files.NotRegular
	switch {
	case errors.As(err, &errno):
		f.Errno = int(errno)
		if s, ok := statuses[errno]; ok {
			status = s
		}
	case errors.As(err, &odd):
		f.Errno = int(syscall.EINVAL)
	}
	c.FailWith(status, f)
}

var errRange = errors.New("bad range")

// span reads "bytes=a-b", "bytes=a-" or nothing, and cuts it to the file.
func span(header string, size int64) (start, end int64, err error) {
	if header == "" {
		return 0, size, nil
	}
	first, last, ok := strings.Cut(strings.TrimPrefix(header, "bytes="), "-")
	if start, err = strconv.ParseInt(first, 10, 64); !ok || err != nil || start < 0 {
		return 0, 0, errRange
	}
	if last == "" {
		return start, size, nil
	}
	if end, err = strconv.ParseInt(last, 10, 64); err != nil || end < start {
		return 0, 0, errRange
	}
	return start, min(end+1, size), nil
}

// read sends a file in chunks, not with a length: one that shrinks meanwhile just ends early.
func read(c *wire.Conn, q *wire.Request, area *files.Area, path string) error {
	file, size, err := area.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	whole := strconv.FormatInt(size, 10)
	start, end, err := span(q.Header["range"], size)
	if err != nil {
		c.Fail(400, "bad_range", "Range: bytes=first-last")
		return nil
	}
	const chunked = "Transfer-Encoding: chunked"
	switch {
	case size == 0: // what it gives all the same: the files of /proc say that they are empty
		err = c.Head(200, chunked, "Skerry-Size: 0")
		end = math.MaxInt64
	case q.Header["range"] == "":
		err = c.Head(200, chunked, "Skerry-Size: "+whole)
	case start >= size:
		return c.Head(416, "Content-Range: bytes */"+whole, "Content-Length: 0")
	default:
		part := strconv.FormatInt(start, 10) + "-" + strconv.FormatInt(end-1, 10)
		err = c.Head(206, chunked, "Content-Range: bytes "+part+"/"+whole)
	}
	if err == nil {
		err = c.SendFile(file, start, end)
	}
	if err != nil {
		c.End() // without the last chunk: the host sees that it is cut off
	}
	return nil
}

func write(c *wire.Conn, q *wire.Request, area *files.Area, path string) error {
	mode, err := parseMode(q.Query.Get("mode"))
	if err != nil {
		return err
	}
	info, err := area.Write(path, q.Body, mode, q.Query.Get("parents") == "1")
	if err == nil {
		c.JSON(200, info)
	}
	return err
}

func parseMode(text string) (*uint32, error) {
	if text == "" {
		return nil, nil
	}
	n, err := strconv.ParseUint(text, 8, 32)
	if err != nil || n > 0o7777 {
		return nil, syscall.EINVAL
	}
	mode := uint32(n)
	return &mode, nil
}

func list(c *wire.Conn, area *files.Area, path string) error {
	var out io.WriteCloser
	separator, total := "", 0
	more, err := area.List(path, func() {
		out = c.Chunked(200)
		_, _ = io.WriteString(out, `{"entries":[`)
	}, func(info *files.Info) bool {
		entry, _ := json.Marshal(info)
		total += len(entry) + 1
		_, err := io.WriteString(out, separator+string(entry))
		separator = ","
		return err == nil && total < maxListing
	})
	if err != nil {
		return err
	}
	_, _ = io.WriteString(out, `],"more":`+strconv.FormatBool(more)+`}`)
	return out.Close()
}

func (k *keeper) mkdir(c *wire.Conn, q *wire.Request, conf *config) {
	var body struct {
		Path    string  `json:"path"`
		Parents bool    `json:"parents"`
		Mode    *uint32 `json:"mode"`
		User    *string `json:"user"`
	}
	if !decode(c, q, &body) {
		return
	}
	name := ""
	if body.User != nil {
		name = *body.User
	}
	area := k.area(c, conf, name, body.User != nil)
	if area == nil {
		return
	}
	info, err := area.Mkdir(body.Path, body.Mode, body.Parents)
	if err != nil {
		failFile(c, body.Path, err)
		return
	}
	c.JSON(200, info)
}
