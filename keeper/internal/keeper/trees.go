package keeper

import (
	"errors"
	"strings"
	"syscall"

	"skerry/keeper/internal/buffers"
	"skerry/keeper/internal/files"
	"skerry/keeper/internal/pattern"
	"skerry/keeper/internal/tar"
	"skerry/keeper/internal/tree"
	"skerry/keeper/internal/wire"
)

// packed is the last frame of an archive: what is in it, or why there is no more of it.
type packed struct {
	*tree.Summary
	Error *wire.Failure `json:"error"`
}

// pack answers with the frames of an archive: 4 first and when it takes long, 1 for each piece of it, 3 at its end.
func pack(c *wire.Conn, q *wire.Request, area *files.Area, path string) error {
	exclude, err := pattern.Parse(q.Query["exclude"])
	if err != nil || q.Header["upgrade"] != "skerry-frames" {
		c.Fail(400, "bad_request", "exclude: "+pattern.ErrBad.Error()+", or Upgrade: skerry-frames is missing")
		return nil
	}
	done, err := tree.Slot()
	if err != nil {
		c.Fail(429, "too_many", err.Error())
		return nil
	}
	defer done()
	root, err := tree.Open(area, path)
	if err != nil {
		return err
	}
	if err := c.Upgrade(wire.Started, struct{}{}); err != nil {
		_ = syscall.Close(root)
		return nil
	}
	return buffers.With(func(buffer []byte) error {
		var broken error
		sum, err := tree.Pack(area.User, root, exclude, buffer, wire.FrameHead, func(piece []byte) error {
			kind := wire.Stdout
			if piece == nil {
				kind, piece = wire.Started, append(make([]byte, wire.FrameHead), "{}"...)
			}
			broken = c.WriteFrame(kind, piece)
			return broken
		})
		if broken == nil {
			end := packed{Summary: sum}
			if err != nil {
				end.Error = failureIn(path, err)
			}
			c.Downgrade(wire.Exit, end)
		}
		return nil
	})
}

// unpack takes an archive.
func unpack(c *wire.Conn, q *wire.Request, area *files.Area, path string) error {
	done, err := tree.Slot()
	if err != nil {
		c.Fail(429, "too_many", err.Error())
		return nil
	}
	defer done()
	root, err := area.OpenDirectory(path, true)
	if err != nil {
		return err
	}
	hurried := c.Unhurried(nil) // it takes as long as whoever sends it
	sum, err := tree.Unpack(area.User, root, q.Body)
	hurried()
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

// failureIn tells of an error with the path of what it happened to, if that is known.
func failureIn(root string, err error) *wire.Failure {
	path := root
	var f *tree.Failure
	if errors.As(err, &f) && f.Name != "" {
		path = strings.TrimRight(root, "/") + "/" + f.Name
	}
	path = strings.ToValidUTF8(path[:min(len(path), 4096)], "\uFFFD")
	failure := &wire.Failure{Code: "errno", Message: path + ": " + err.Error(), Errno: int(syscall.EIO), Path: &path}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		failure.Errno = int(errno)
	}
	return failure
}
