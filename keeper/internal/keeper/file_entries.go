package keeper

import (
	"encoding/json"
	"io"
	"strconv"
	"syscall"

	"skerry/keeper/internal/accounts"
	"skerry/keeper/internal/files"
	"skerry/keeper/internal/glob"
)

const (
	maxListing   = 24 << 20 // the host takes 32 MiB
	maxEntries   = 100_000
	maxDepth     = 1 << 20
	maxPathShown = 8 << 10 // of an error
)

func (f *fileCall) stat() error { return f.described(f.area.Stat(f.path, f.flag("follow"))) }

// described answers with an entry.
func (f *fileCall) described(info *files.Info, err error) error {
	if err == nil {
		f.answer(info)
	}
	return err
}

// done answers a call that has nothing to tell.
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
	return f.inTurn(depth > 1, func() error { return f.sendList(o) })
}

func (f *fileCall) sendList(o files.ListOptions) error {
	begun, separator, total := false, "", 0
	listing, err := f.area.List(f.path, o, func() {
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
		f.c.End() // in the middle of an answer
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
	return f.described(f.area.Mkdir(f.path, mode, f.flag("parents")))
}

func (f *fileCall) remove() error {
	recursive := f.flag("recursive")
	return f.inTurn(recursive, func() error { return f.done(f.area.Remove(f.path, recursive)) })
}

func (f *fileCall) place() files.PlaceOptions {
	return files.PlaceOptions{Overwrite: f.flag("overwrite"), Parents: f.flag("parents")}
}

func (f *fileCall) move() error {
	to := f.q.Query.Get("to")
	info, err := f.area.Move(f.path, to, f.place())
	if err != syscall.EXDEV {
		return f.described(info, err)
	}
	return f.inTurn(true, func() error { return f.described(f.area.MoveAcross(f.path, to, f.place())) })
}

func (f *fileCall) copy() error {
	return f.inTurn(true, func() error {
		return f.described(f.area.Copy(f.path, f.q.Query.Get("to"), f.place(), f.flag("recursive")))
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
	return f.inTurn(recursive, func() error { return f.done(f.area.Chmod(f.path, *mode, recursive)) })
}

func (f *fileCall) chown() error {
	uid, gid, err := accounts.Owner(f.q.Query.Get("owner"))
	if err != nil {
		return err
	}
	recursive := f.flag("recursive")
	return f.inTurn(recursive, func() error { return f.done(f.area.Chown(f.path, uid, gid, recursive)) })
}

func (f *fileCall) link() error {
	return f.described(f.area.Link(f.q.Query.Get("to"), f.path, f.flag("hard")))
}
