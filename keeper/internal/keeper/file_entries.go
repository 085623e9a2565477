package keeper

import (
	"encoding/json"
	"io"
	"strconv"
	"syscall"

	"skerry/keeper/internal/accounts"
	"skerry/keeper/internal/files"
	"skerry/keeper/internal/match/glob"
)

const (
	maxListing   = 24 << 20 // the host accepts 32 MiB
	maxEntries   = 100_000
	maxDepth     = 1 << 20
	maxPathShown = 8 << 10 // in an error
)

func (f *fileCall) stat() error {
	f.fs.Attributes = f.flag("attributes")
	return f.described(f.fs.Stat(f.path, f.flag("follow")))
}

// described responds with an entry.
func (f *fileCall) described(info *files.Info, err error) error {
	if err == nil {
		f.answer(info)
	}
	return err
}

// done responds to a call without a result.
func (f *fileCall) done(err error) error {
	if err == nil {
		f.answer(struct{}{})
	}
	return err
}

func (f *fileCall) list() error {
	depth, err := f.number("depth", 1, maxDepth)
	if err != nil {
		return err
	}
	limit, err := f.number("limit", maxEntries, maxEntries)
	if err != nil {
		return err
	}
	if f.q.Query.Has("glob") && f.q.Query.Get("glob") == "" {
		return glob.ErrPattern
	}
	o := files.ListOptions{Depth: depth, Hidden: f.flag("hidden"), Glob: f.q.Query.Get("glob"), Limit: limit}
	o.Attributes = f.flag("attributes")
	return f.whenFree(depth > 1, func() error { return f.sendList(o) })
}

// sendList streams the entries, so that a long list needs little memory. Once the response has started, an error can
// only cut it off.
func (f *fileCall) sendList(o files.ListOptions) error {
	begun, separator, total := false, "", 0
	listing, err := f.fs.List(f.path, o, func() {
		_, _ = io.WriteString(f.body(), `{"entries":[`)
		begun = true
	}, func(info *files.Info) bool {
		entry, _ := json.Marshal(info)
		if total += len(entry) + 1; total > maxListing {
			return false
		}
		_, err := io.WriteString(f.out, separator+string(entry))
		separator = ","
		return err == nil
	})
	if err != nil && begun {
		f.c.End() // the response has already started
		return nil
	}
	if err != nil {
		return err
	}
	end := `],"more":` + strconv.FormatBool(listing.More) + `,"skipped":` + strconv.Itoa(listing.Skipped) + `}`
	_, _ = io.WriteString(f.out, end)
	return f.out.Close()
}

func (f *fileCall) mkdir() error {
	mode, err := f.mode()
	if err != nil {
		return err
	}
	return f.described(f.fs.Mkdir(f.path, mode, f.flag("parents")))
}

func (f *fileCall) remove() error {
	recursive := f.flag("recursive")
	return f.whenFree(recursive, func() error { return f.done(f.fs.Remove(f.path, recursive)) })
}

func (f *fileCall) place() files.PlaceOptions {
	return files.PlaceOptions{Overwrite: f.flag("overwrite"), Parents: f.flag("parents")}
}

func (f *fileCall) move() error {
	to := f.q.Query.Get("to")
	info, err := f.fs.Move(f.path, to, f.place())
	if err != syscall.EXDEV {
		return f.described(info, err)
	}
	return f.whenFree(true, func() error { return f.described(f.fs.MoveAcross(f.path, to, f.place())) })
}

func (f *fileCall) copy() error {
	return f.whenFree(true, func() error {
		return f.described(f.fs.Copy(f.path, f.q.Query.Get("to"), f.place(), f.flag("recursive")))
	})
}

func (f *fileCall) chmod() error {
	mode, err := f.mode()
	if err != nil {
		return err
	}
	if mode == nil {
		return badArgument("mode")
	}
	recursive := f.flag("recursive")
	return f.whenFree(recursive, func() error { return f.done(f.fs.Chmod(f.path, *mode, recursive)) })
}

func (f *fileCall) chown() error {
	uid, gid, err := accounts.Owner(f.q.Query.Get("owner"))
	if err != nil {
		return err
	}
	recursive := f.flag("recursive")
	return f.whenFree(recursive, func() error { return f.done(f.fs.Chown(f.path, uid, gid, recursive)) })
}

func (f *fileCall) link() error {
	return f.described(f.fs.Link(f.q.Query.Get("to"), f.path, f.flag("hard")))
}
