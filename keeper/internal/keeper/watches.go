package keeper

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"

	"skerry/keeper/internal/pattern"
	"skerry/keeper/internal/watch"
	"skerry/keeper/internal/wire"
)

// standing is the first line of a watch, and comes again when events were lost: where the reader stands now.
type standing struct {
	Type    string `json:"type"`
	Watcher string `json:"watcher"`
	Seq     int64  `json:"seq"`
	Lost    bool   `json:"lost"`
}

type change struct {
	Seq       int64   `json:"seq"`
	Type      string  `json:"type"`
	Path      string  `json:"path"`
	Raw       []byte  `json:"raw,omitempty"` // where the path is not UTF-8
	To        *string `json:"to"`
	RawTo     []byte  `json:"raw_to,omitempty"`
	Directory bool    `json:"directory"`
}

// watch answers with a line for each change, until the host leaves or the directory is gone. To begin may take long: all
// directories are looked at first.
func (f *fileCall) watch() error {
	include, err := pattern.Parse(f.q.Query["include"])
	exclude, other := pattern.Parse(f.q.Query["exclude"])
	if err != nil || other != nil {
		f.fail(400, wire.Failure{Code: "bad_request", Message: "include, exclude: " + pattern.ErrBad.Error()})
		return nil
	}
	path, err := f.area.Absolute(f.path)
	if err != nil {
		return err
	}
	recursive := f.flag("recursive")
	wish := watch.Wish{
		User: f.area.User, Path: path, Recursive: recursive, Include: include, Exclude: exclude, Pulse: f.beat,
	}
	key := strings.Join([]string{
		strconv.Itoa(int(f.area.User.UID)), path, strconv.FormatBool(recursive), strings.Join(f.q.Query["include"], "\x00"),
		strings.Join(f.q.Query["exclude"], "\x00"),
	}, "\x01")
	reader, err := f.all.Open(wish, key, f.q.Query.Get("since"))
	switch {
	case errors.Is(err, watch.ErrTooMany), errors.Is(err, watch.ErrTooManyWatches), errors.Is(err, watch.ErrNoWatches),
		errors.Is(err, watch.ErrNoInstances), errors.Is(err, watch.ErrTooDeep):
		f.fail(429, wire.Failure{Code: "too_many", Message: err.Error()})
		return nil
	case err != nil:
		return err
	}
	defer reader.Close()
	f.tellChanges(reader)
	return nil
}

func (f *fileCall) tellChanges(r *watch.Reader) {
	c, left := f.c, f.c.Left()
	var err error
	if f.out == nil { // else the head has gone out
		err = c.Head(200, "Content-Type: application/x-ndjson", "Transfer-Encoding: chunked")
	}
	if err == nil {
		err = sendLine(c, standing{"hello", r.ID, r.Seq, r.Lost})
	}
	for err == nil {
		events, lost := r.Next(left)
		switch {
		case lost:
			err = sendLine(c, standing{"hello", r.ID, r.Seq, true})
		case len(events) > 0:
			err = c.WriteChunk(lines(events))
		default: // the host has left, or there is nothing more to come
			_ = c.EndChunks()
			return
		}
	}
}

func lines(events []watch.Event) []byte {
	var out []byte
	for _, e := range events {
		line := change{Seq: e.Seq, Type: e.Type, Directory: e.Directory}
		line.Path, line.Raw = readable(e.Path)
		if e.To != "" {
			var to string
			to, line.RawTo = readable(e.To)
			line.To = &to
		}
		text, _ := json.Marshal(line)
		out = append(append(out, text...), '\n')
	}
	return out
}

func readable(path string) (string, []byte) {
	if utf8.ValidString(path) {
		return path, nil
	}
	return strings.ToValidUTF8(path, "\uFFFD"), []byte(path)
}
