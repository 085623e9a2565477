package keeper

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"

	"skerry/keeper/internal/httpwire"
	"skerry/keeper/internal/match/filter"
	"skerry/keeper/internal/watch"
)

// watchHello is the first line of a watch: the reader's current position. It is sent again when events were lost.
type watchHello struct {
	Type    string `json:"type"`
	Watcher string `json:"watcher"`
	Seq     int64  `json:"seq"`
	Lost    bool   `json:"lost"`
}

type change struct {
	Seq       int64   `json:"seq"`
	Type      string  `json:"type"`
	Path      string  `json:"path"`
	Raw       []byte  `json:"raw,omitempty"` // set if the path is not UTF-8
	To        *string `json:"to"`
	RawTo     []byte  `json:"raw_to,omitempty"`
	Directory bool    `json:"directory"`
}

// watch sends a line for each change until the host hangs up or the directory is gone. The start may take long, because
// all directories are read first.
func (f *fileCall) watch() error {
	include, err := filter.Parse(f.q.Query["include"])
	exclude, other := filter.Parse(f.q.Query["exclude"])
	if err != nil || other != nil {
		f.fail(400, httpwire.Failure{Code: "bad_request", Message: "include, exclude: " + filter.ErrBad.Error()})
		return nil
	}
	path, err := f.fs.Absolute(f.path)
	if err != nil {
		return err
	}
	recursive := f.flag("recursive")
	options := watch.Options{
		User: f.fs.User, Path: path, Recursive: recursive, Include: include, Exclude: exclude, Heartbeat: f.beat,
	}
	key := strings.Join([]string{
		strconv.Itoa(int(f.fs.User.UID)), path, strconv.FormatBool(recursive), strings.Join(f.q.Query["include"], "\x00"),
		strings.Join(f.q.Query["exclude"], "\x00"),
	}, "\x01")
	reader, err := f.all.Open(options, key, f.q.Query.Get("since"))
	switch {
	case errors.Is(err, watch.ErrTooMany), errors.Is(err, watch.ErrTooManyWatches), errors.Is(err, watch.ErrNoWatches),
		errors.Is(err, watch.ErrNoInstances), errors.Is(err, watch.ErrTooDeep):
		f.fail(429, httpwire.Failure{Code: "limit_exceeded", Message: err.Error()})
		return nil
	case err != nil:
		return err
	}
	defer reader.Close()
	f.sendChanges(reader)
	return nil
}

// sendChanges sends the events of a watcher until the host hangs up.
func (f *fileCall) sendChanges(r *watch.Reader) {
	c, left := f.c, f.c.PeerGone()
	var err error
	if f.out == nil { // otherwise the head has been sent
		err = c.Head(200, "Content-Type: application/x-ndjson", "Transfer-Encoding: chunked")
	}
	if err == nil {
		err = sendLine(c, watchHello{"hello", r.ID, r.Seq, r.Lost})
	}
	for err == nil {
		events, lost := r.Next(left)
		switch {
		case lost:
			err = sendLine(c, watchHello{"hello", r.ID, r.Seq, true})
		case len(events) > 0:
			err = c.WriteChunk(lines(events))
		default: // the host has hung up, or the watch has ended
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
