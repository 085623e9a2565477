package keeper

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"

	"skerry/keeper/internal/accounts"
	"skerry/keeper/internal/files"
)

var errRange = errors.New("bad range")

// span parses "bytes=a-b", "bytes=a-" or an empty header and clips the range to the file.
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

// read sends a file in chunks without announcing a length: a file that shrinks meanwhile ends early.
func (f *fileCall) read() error {
	file, size, err := f.fs.Open(f.path)
	if err != nil {
		return err
	}
	defer file.Close()
	whole := strconv.FormatInt(size, 10)
	header := f.q.Header["range"]
	start, end, err := span(header, size)
	if err != nil {
		f.c.Fail(400, "bad_range", "Range: bytes=first-last")
		return nil
	}
	const chunked = "Transfer-Encoding: chunked"
	switch {
	case size == 0: // read until EOF: files in /proc report size 0
		err = f.c.Head(200, chunked, "Skerry-Size: 0")
		start, end = 0, math.MaxInt64
	case header == "":
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
		f.c.End() // without the last chunk, the host notices the truncation
	}
	return nil
}

// write takes as long as the sender of the content: the host hangs up when its own caller has left.
func (f *fileCall) write() error {
	defer f.c.AllowSlowBody(nil)()
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
	if text := f.q.Query.Get("attributes"); text != "" {
		if json.Unmarshal([]byte(text), &o.Attributes) != nil {
			return badArgument("attributes")
		}
	}
	var info *files.Info
	if f.flag("append") {
		if o.Mode != nil || o.Owner != nil {
			return badArgument("append")
		}
		info, err = f.fs.Append(f.path, f.q.Body, o.Parents)
	} else {
		info, err = f.fs.Write(f.path, f.q.Body, o)
	}
	if err == nil {
		f.answer(info)
	}
	return err
}

// mode parses an octal mode; nil: not given.
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
	return f.whenFree(true, func() error {
		sum, err := f.fs.Checksum(f.path, f.q.Query.Get("algorithm"))
		if err == nil {
			f.answer(map[string]string{"checksum": sum})
		}
		return err
	})
}
