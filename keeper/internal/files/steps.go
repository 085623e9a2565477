package files

import (
	"errors"

	"skerry/keeper/internal/rights"
)

// ErrGone ends work that nobody waits for any more.
var ErrGone = errors.New("the host has hung up")

// verdict is what one step of long work says.
type verdict int

const (
	goOn   verdict = iota
	deeper         // of an entry: it is a directory, and to be entered
	pause          // something has to be done outside: bytes to be moved or sent
	done
)

const stepsAtOnce = 256

// inSteps runs step with the user's rights, some at a time so that others get their turn on the few threads that there
// are, until it says pause or done.
func (a *Area) inSteps(step func() (verdict, error)) (v verdict, err error) {
	for v == goOn && err == nil {
		if err = a.beat(); err != nil {
			return v, err
		}
		err = rights.Do(a.User, func() (err error) {
			for n := 0; n < stepsAtOnce && v == goOn && err == nil; n++ {
				v, err = step()
			}
			return err
		})
	}
	return v, err
}

func (a *Area) beat() error {
	if a.Pulse == nil {
		return nil
	}
	return a.Pulse()
}
