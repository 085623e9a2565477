package uncharged

import (
	"bytes"
	"errors"
	"os"
	"strconv"
)

var errNoFilters = errors.New("the kernel does not tell the number of a process's seccomp filters")

// filterCount is an upper bound of the filters that programs inside have installed.
type filterCount struct {
	inherited int         // by every command
	approved  map[int]int // filters of a thread, once its last approved call is done
	installed map[int]int // approved calls of each process, since it was first seen
}

// expect notes that a call is about to be approved; it returns false if the caller was killed.
func (c *filterCount) expect(thread int) bool {
	status, err := statusOf("/proc/" + strconv.Itoa(thread) + "/status")
	if err != nil {
		return false
	}
	c.approved[thread] = status.filters + 1
	c.installed[status.process]++
	return true
}

// count returns the sum over all processes.
func (c *filterCount) count() int {
	total, threads, processes := 0, make(map[int]int, len(c.approved)), make(map[int]int, len(c.installed))
	for _, process := range numbers("/proc") {
		found, ok := c.countProcess(process, threads)
		if !ok {
			return maxInt
		}
		if installed, known := c.installed[process]; known {
			processes[process] = installed
		}
		total += found
	}
	c.approved, c.installed = threads, processes
	return total
}

// countProcess returns the smaller of two bounds, because threads share filters: the sum over all threads, and the filters
// that every thread has (which include all that the process inherited) with those that its threads installed. An approved
// call may not have been executed yet.
func (c *filterCount) countProcess(process int, threads map[int]int) (int, bool) {
	tasks := "/proc/" + strconv.Itoa(process) + "/task"
	sum, least := 0, maxInt
	for _, thread := range numbers(tasks) {
		status, err := statusOf(tasks + "/" + strconv.Itoa(thread) + "/status")
		if err == errNoFilters {
			return 0, false
		}
		if err == nil {
			least = min(least, max(0, status.filters-c.inherited))
		}
		if expected, ok := c.approved[thread]; ok && err == nil {
			status.filters, threads[thread] = max(status.filters, expected), expected
		}
		sum += max(0, status.filters-c.inherited)
	}
	return min(sum, least+c.installed[process]), true
}

// numbers returns the entries of a directory that are numbers.
func numbers(directory string) []int {
	file, err := os.Open(directory)
	if err != nil {
		return nil // the process ended
	}
	defer file.Close()
	names, _ := file.Readdirnames(-1)
	found := make([]int, 0, len(names))
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			found = append(found, n)
		}
	}
	return found
}

// status is what the kernel tells of a thread.
type status struct{ process, filters int }

func statusOf(path string) (status, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return status{}, err
	}
	process, err := field(text, "\nTgid:")
	if err != nil {
		return status{}, err
	}
	filters, err := field(text, "\nSeccomp_filters:")
	return status{process, filters}, err
}

func field(text []byte, name string) (int, error) {
	_, rest, found := bytes.Cut(text, []byte(name))
	if !found {
		return 0, errNoFilters
	}
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	return strconv.Atoi(string(bytes.TrimSpace(line)))
}
