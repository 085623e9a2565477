package keeper

import (
	"errors"
	"strings"
	"syscall"

	"skerry/keeper/internal/bufpool"
	"skerry/keeper/internal/httpwire"
	"skerry/keeper/internal/match/filter"
	"skerry/keeper/internal/tar"
	"skerry/keeper/internal/tree"
)

// packed is the last frame of an archive: its contents, or the error that cut it short.
type packed struct {
	*tree.Summary
	Error *httpwire.Failure `json:"error"`
}

// pack sends an archive as frames: 4 first and while the work takes long, 1 for each piece, 3 at the end.
func (f *fileCall) pack() error {
	c, q, fs, path := f.c, f.q, f.fs, f.path
	exclude, err := filter.Parse(q.Query["exclude"])
	if err != nil || q.Header["upgrade"] != "skerry-frames" {
		c.Fail(400, "bad_request", "exclude: "+filter.ErrBad.Error()+", or the header Upgrade: skerry-frames is missing")
		return nil
	}
	done, err := tree.Slot()
	if err != nil {
		c.Fail(429, "limit_exceeded", err.Error())
		return nil
	}
	defer done()
	root, err := tree.Open(fs, path)
	if err != nil {
		return err
	}
	if err := c.Upgrade(httpwire.Started, struct{}{}); err != nil {
		_ = syscall.Close(root)
		return nil
	}
	return bufpool.With(func(buffer []byte) error {
		var broken error
		sum, err := tree.Pack(fs.User, root, exclude, buffer, httpwire.FrameHeader, func(piece []byte) error {
			kind := httpwire.Stdout
			if piece == nil {
				kind, piece = httpwire.Started, append(make([]byte, httpwire.FrameHeader), "{}"...)
			}
			broken = c.WriteFrame(kind, piece)
			return broken
		})
		if broken == nil {
			end := packed{Summary: sum}
			if err != nil {
				end.Error = failureIn(path, err)
			}
			c.Downgrade(httpwire.Exit, end)
		}
		return nil
	})
}

// unpack receives an archive.
func (f *fileCall) unpack() error {
	c, q, fs, path := f.c, f.q, f.fs, f.path
	done, err := tree.Slot()
	if err != nil {
		c.Fail(429, "limit_exceeded", err.Error())
		return nil
	}
	defer done()
	root, err := fs.OpenDirectory(path, true)
	if err != nil {
		return err
	}
	restore := c.AllowSlowBody(nil) // as slow as the sender
	sum, err := tree.Unpack(fs.User, root, q.Body)
	restore()
	var bad tar.Malformed
	switch {
	case err == nil:
		c.JSON(200, sum)
	case errors.As(err, &bad):
		c.Fail(400, "bad_request", bad.Error())
	default:
		f := failureIn(path, err)
		status, known := statuses[syscall.Errno(f.Errno)]
		if !known {
			status = 400
		}
		c.FailWith(status, *f)
	}
	return nil
}

// failureIn describes an error with the path that it concerns, if known.
func failureIn(root string, err error) *httpwire.Failure {
	path := root
	var f *tree.Failure
	if errors.As(err, &f) && f.Name != "" {
		path = strings.TrimRight(root, "/") + "/" + f.Name
	}
	path = strings.ToValidUTF8(path[:min(len(path), 4096)], "\uFFFD")
	failure := &httpwire.Failure{Code: "errno", Message: path + ": " + err.Error(), Errno: int(syscall.EIO), Path: &path}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		failure.Errno = int(errno)
	}
	return failure
}
