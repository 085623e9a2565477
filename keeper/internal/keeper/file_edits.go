package keeper

import (
	"errors"
	"math"

	"skerry/keeper/internal/diff"
	"skerry/keeper/internal/files"
	"skerry/keeper/internal/wire"
)

// replace takes the old text and the new one as one body; split is the length of the first.
func (f *fileCall) replace() error {
	body, err := f.q.ReadAll()
	if err != nil {
		return badArgument("body")
	}
	split, err := f.number("split", 0, files.MaxReplaced)
	if err != nil || split < 1 || split > len(body) {
		return badArgument("split")
	}
	count, err := f.number("count", 0, math.MaxInt32)
	if err != nil {
		return err
	}
	return f.inTurn(true, func() error {
		found, err := f.area.Replace(f.path, body[:split], body[split:], count)
		if err == nil {
			f.answer(found)
		}
		return err
	})
}

func (f *fileCall) patch() error {
	body, err := f.q.ReadAll()
	if err != nil {
		return badArgument("body")
	}
	return f.inTurn(true, func() error {
		done, err := f.area.Patch(f.path, body)
		if err == nil {
			f.answer(map[string]any{"files": done})
		}
		return err
	})
}

// misfit answers for an edit that does not go with what is there; false: the error is another one.
func (f *fileCall) misfit(err error) bool {
	path := f.about(err)
	said := wire.Failure{Code: "no_match", Message: path + ": ", Path: &path}
	status := 409
	var occurs *files.Occurs
	var mismatch *diff.Mismatch
	var malformed *diff.Malformed
	var unfit files.ErrPatch
	switch {
	case errors.As(err, &occurs):
		said.Message += occurs.Error()
		said.Details = map[string]any{"count": occurs.Count, "lines": occurs.Lines}
	case errors.As(err, &mismatch):
		said.Message += mismatch.Error()
		said.Details = map[string]any{"hunk": mismatch.Hunk, "line": mismatch.Line}
	case errors.Is(err, files.ErrChanged):
		said.Code, said.Message = "changed", said.Message+files.ErrChanged.Error()
	case errors.As(err, &malformed), errors.As(err, &unfit):
		status, said = 400, wire.Failure{Code: "bad_request", Message: err.Error()}
	default:
		return false
	}
	f.fail(status, said)
	return true
}
