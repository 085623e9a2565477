package keeper

import (
	"errors"
	"math"
	"strconv"
	"strings"

	"skerry/keeper/internal/accounts"
	"skerry/keeper/internal/files"
)

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
func (f *fileCall) read() error {
	file, size, err := f.area.Open(f.path)
	if err != nil {
		return err
	}
	defer file.Close()
	whole := strconv.FormatInt(size, 10)
	wish := f.q.Header["range"]
	start, end, err := span(wish, size)
	if err != nil {
		f.c.Fail(400, "bad_range", "Range: bytes=first-last")
		return nil
	}
	const chunked = "Transfer-Encoding: chunked"
	switch {
	case size == 0: // all that it gives: the files of /proc say that they are empty
		err = f.c.Head(200, chunked, "Skerry-Size: 0")
		start, end = 0, math.MaxInt64
	case wish == "":
		err = f.c.Head(200, chunked, "Skerry-Size: "+whole)
	case start >= size:
		return f.c.Head(416, "Content-Range: bytes */"+whole, "Content-Length: 0")
	default:
		part := strconv.FormatInt(start, 10) + "-" + strconv.FormatInt(end-1, 10)
		err = f.c.Head(206, chunked, "Content-Range: bytes "+part+"/"+whole)
	}
	if err == nil {
		err = f.c.SendFile(file, start, end)
	}
	if err != nil {
		f.c.End() // without the last chunk: the host sees that it is cut off
	}
	return nil
}

// write takes as long as whoever sends the content: the host hangs up when that one has left.
func (f *fileCall) write() error {
	defer f.c.Unhurried(nil)()
	o := files.WriteOptions{Parents: f.flag("parents")}
	var err error
	if o.Mode, err = f.mode(); err != nil {
		return err
	}
	if text := f.q.Query.Get("owner"); text != "" {
		uid, gid, err := accounts.Owner(text)
		if err != nil {
			return err
		}
		o.Owner = &files.Owner{UID: uid, GID: gid}
	}
	var info *files.Info
	if f.flag("append") {
		if o.Mode != nil || o.Owner != nil {
			return badArgument("append")
		}
		info, err = f.area.Append(f.path, f.q.Body, o.Parents)
	} else {
		info, err = f.area.Write(f.path, f.q.Body, o)
	}
	if err == nil {
		f.answer(info)
	}
	return err
}

// mode reads an octal mode; nil: none was given.
func (f *fileCall) mode() (*uint32, error) {
	text := f.q.Query.Get("mode")
	if text == "" {
		return nil, nil
	}
	n, err := strconv.ParseUint(text, 8, 32)
	if err != nil || n > 0o7777 {
		return nil, badArgument("mode")
	}
	mode := uint32(n)
	return &mode, nil
}

func (f *fileCall) checksum() error {
	return f.inTurn(true, func() error {
		sum, err := f.area.Checksum(f.path, f.q.Query.Get("algorithm"))
		if err == nil {
			f.answer(map[string]string{"checksum": sum})
		}
		return err
	})
}
