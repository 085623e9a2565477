package uncharged

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"syscall"
)

var errNoState = errors.New("the kernel's line about a thread has another form")

// A thread that used the processor for so many ticks (of 10 ms) is not in the same call any more: each takes microseconds.
const ticksOfNoCall = 10

// call is an approved call.
type call struct {
	kind  *kind
	ticks int // processor time of its thread when it was first found running; -1: it was not
}

// calls has the approved calls that may not have ended, by thread. Time proves nothing: a program decides how long its
// threads wait for a processor (SCHED_IDLE, a CPU quota).
type calls map[int]call

func (c calls) began(thread int, k *kind) {
	c[thread] = call{k, -1}
	k.under++
}

// ended notes that a thread is not in its approved call any more.
func (c calls) ended(thread int) {
	if one, ok := c[thread]; ok {
		one.kind.under--
		delete(c, thread)
	}
}

// findEnded removes the calls of all threads that are gone, or wait for something else.
func (c calls) findEnded() {
	for thread, one := range c {
		state, ticks, err := stateOf(thread)
		gone := errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ESRCH)
		switch {
		case gone || err == nil && (!maybeInCall(state) || one.ticks >= 0 && ticks-one.ticks >= ticksOfNoCall):
			c.ended(thread)
		case err == nil && one.ticks < 0:
			c[thread] = call{one.kind, ticks}
		}
	}
}

// maybeInCall returns whether a thread in that state may be in an approved call. It waits for the approval in an
// interruptible sleep, which has ended when the answer is sent. From there to the end of the call, it only waits for locks
// and memory, which is uninterruptible. It is stopped, traced or frozen only after the call.
func maybeInCall(state byte) bool {
	return state != 'S' && state != 'T' && state != 't' && state != 'Z' && state != 'X'
}

// stateOf returns a thread's state and its processor time.
func stateOf(thread int) (byte, int, error) {
	id := strconv.Itoa(thread)
	text, err := os.ReadFile("/proc/" + id + "/task/" + id + "/stat")
	if err != nil {
		return 0, 0, err
	}
	const state, userTime, systemTime = 0, 11, 12
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:]) // the program chooses the name before it
	if len(fields) <= systemTime || len(fields[state]) != 1 {
		return 0, 0, errNoState
	}
	return fields[state][0], number(fields[userTime]) + number(fields[systemTime]), nil
}
