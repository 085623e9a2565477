package files

import (
	"errors"

	"skerry/keeper/internal/asuser"
)

// ErrHungUp ends work after the caller has gone.
var ErrHungUp = errors.New("the host has hung up")

// verdict is the result of one step of long work.
type verdict int

const (
	proceed verdict = iota
	deeper          // the entry is a directory to enter
	pause           // work without the user's rights is due: moving or sending bytes
	done
)

const stepsPerJob = 256

// runSteps runs step with the user's rights, some steps per job so that other calls get their turn on the few threads,
// until it returns pause or done.
func (fs *UserFS) runSteps(step func() (verdict, error)) (v verdict, err error) {
	for v == proceed && err == nil {
		if err = fs.heartbeat(); err != nil {
			return v, err
		}
		err = asuser.Do(fs.User, func() (err error) {
			for n := 0; n < stepsPerJob && v == proceed && err == nil; n++ {
				v, err = step()
			}
			return err
		})
	}
	return v, err
}

func (fs *UserFS) heartbeat() error {
	if fs.Heartbeat == nil {
		return nil
	}
	return fs.Heartbeat()
}
