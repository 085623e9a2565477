package keeper

import (
	"errors"
	"math"

	"skerry/keeper/internal/diff"
	"skerry/keeper/internal/files"
	"skerry/keeper/internal/httpwire"
)

// replace reads the old and the new text from one body; split is the length of the old text.
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
	return f.whenFree(true, func() error {
		found, err := f.fs.Replace(f.path, body[:split], body[split:], count)
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
	return f.whenFree(true, func() error {
		done, err := f.fs.Patch(f.path, body)
		if err == nil {
			f.answer(map[string]any{"files": done})
		}
		return err
	})
}

// failEdit responds to an edit that does not fit the file. It returns false for other errors.
func (f *fileCall) failEdit(err error) bool {
	path := f.about(err)
	failure := httpwire.Failure{Code: "no_match", Message: path + ": ", Path: &path}
	status := 409
	var occurs *files.Occurs
	var mismatch *diff.Mismatch
	var malformed *diff.Malformed
	var unfit files.ErrPatch
	switch {
	case errors.As(err, &occurs):
		failure.Message += occurs.Error()
		failure.Details = map[string]any{"count": occurs.Count, "lines": occurs.Lines}
	case errors.As(err, &mismatch):
		failure.Message += mismatch.Error()
		failure.Details = map[string]any{"hunk": mismatch.Hunk, "line": mismatch.Line}
	case errors.Is(err, files.ErrChanged):
		failure.Code, failure.Message = "changed", failure.Message+files.ErrChanged.Error()
	case errors.As(err, &malformed), errors.As(err, &unfit):
		status, failure = 400, httpwire.Failure{Code: "bad_request", Message: err.Error()}
	default:
		return false
	}
	f.fail(status, failure)
	return true
}
