package keeper

import (
	"math"

	"skerry/keeper/internal/files"
)

const (
	maxMatches = 10_000
	maxContext = 100
	maxChanged = 10_000
	manyLines  = 100_000 // to be passed over before the first one that is wanted
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
	return f.inTurn(start > manyLines, func() error {
		lines, err := f.area.Lines(f.path, int64(start), int64(end))
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
	return f.inTurn(true, func() error {
		matches, err := f.area.Search(f.path, o)
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
	return f.inTurn(true, func() error {
		found, whole, err := f.area.Changed(f.path, int64(since), limit)
		if err == nil {
			f.answer(map[string]any{"entries": found, "more": whole.More, "skipped": whole.Skipped})
		}
		return err
	})
}
