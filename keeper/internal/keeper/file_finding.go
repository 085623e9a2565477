package keeper

import (
	"math"

	"skerry/keeper/internal/files"
)

const (
	maxMatches = 10_000
	maxContext = 100
	maxChanged = 10_000
	longSkip   = 100_000 // skipping so many lines counts as long work
)

func (f *fileCall) lines() error {
	start, err := f.number("start", 1, math.MaxInt)
	if err != nil {
		return err
	}
	end, err := f.number("end", math.MaxInt, math.MaxInt)
	if err != nil {
		return err
	}
	if start < 1 || end < start {
		return badArgument("start, end")
	}
	return f.whenFree(start > longSkip, func() error {
		lines, err := f.fs.Lines(f.path, int64(start), int64(end))
		if err == nil {
			f.answer(lines)
		}
		return err
	})
}

func (f *fileCall) search() error {
	context, err := f.number("context", 0, maxContext)
	if err != nil {
		return err
	}
	limit, err := f.number("limit", maxMatches, maxMatches)
	if err != nil {
		return err
	}
	o := files.SearchOptions{
		Pattern: f.q.Query.Get("pattern"), Literal: f.flag("literal"), IgnoreCase: f.flag("ignore_case"),
		Glob: f.q.Query.Get("glob"), Hidden: f.flag("hidden"), Context: context, Limit: limit,
	}
	return f.whenFree(true, func() error {
		matches, err := f.fs.Search(f.path, o)
		if err == nil {
			f.answer(matches)
		}
		return err
	})
}

func (f *fileCall) changed() error {
	limit, err := f.number("limit", maxChanged, maxChanged)
	if err != nil {
		return err
	}
	since, err := f.number("since", 0, math.MaxInt)
	if err != nil {
		return err
	}
	return f.whenFree(true, func() error {
		found, whole, err := f.fs.Changed(f.path, int64(since), limit)
		if err == nil {
			f.answer(map[string]any{"entries": found, "more": whole.More, "skipped": whole.Skipped})
		}
		return err
	})
}
