package uncharged

import (
	"os/exec"
	"testing"
	"time"
)

func started(t *testing.T, argv ...string) int {
	t.Helper()
	child := exec.Command(argv[0], argv[1:]...)
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })
	return child.Process.Pid
}

func waitFor(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

func inState(thread int, wanted byte) func() bool {
	return func() bool { state, _, err := stateOf(thread); return err == nil && state == wanted }
}

func TestCallEndsWhenItsThreadWaitsOrIsGone(t *testing.T) {
	waiting := started(t, "sleep", "60")
	waitFor(t, "the child does not sleep", inState(waiting, 'S'))
	for _, thread := range []int{waiting, noThread} {
		k, c := &kind{}, calls{}
		c.began(thread, k)
		if c.findEnded(); k.under != 0 || len(c) != 0 {
			t.Errorf("%d calls of thread %d did not end", k.under, thread)
		}
	}
}

func TestCallOfRunningThreadEndsAfterItsProcessorTime(t *testing.T) {
	running := started(t, "sh", "-c", "while :; do :; done")
	waitFor(t, "the child does not run", inState(running, 'R'))
	k, c := &kind{}, calls{}
	c.began(running, k)
	if c.findEnded(); k.under != 1 {
		t.Fatal("the call of a running thread ended")
	}
	_, before, _ := stateOf(running)
	waitFor(t, "the call did not end", func() bool { c.findEnded(); return k.under == 0 })
	if _, after, _ := stateOf(running); after-before < ticksOfNoCall-1 {
		t.Errorf("it ended after %d ticks", after-before)
	}
}

func TestCallEndsWithTheNextOneOfItsThread(t *testing.T) {
	k := &kind{cost: 1, each: 1, count: func() int { return 0 }}
	b := budget{kinds: []*kind{k}, size: fixed(10), calls: calls{}}
	for range 100 {
		if !b.take(k, noThread) {
			t.Fatal("refused")
		}
		if k.under != 1 {
			t.Fatalf("%d calls of one thread", k.under)
		}
	}
}
