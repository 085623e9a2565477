package uncharged

import (
	"bytes"
	"errors"
	"os"
	"strconv"
)

// The machine code of the longest seccomp filter takes less than 64 KB.
const (
	minFilters = 128
	perFilter  = 64 << 10 * 40 // one for each: 2.5 % of the memory limit
)

var errNoFilters = errors.New("the kernel does not tell the number of a process's seccomp filters")

func maxFilters() int { return minFilters + memory()/perFilter }

// filterQuota is an upper bound of the filters in the sandbox: a filter that several threads inherited counts for each.
type filterQuota struct {
	bound, most int
	inherited   int         // by every command
	approved    map[int]int // filters of a thread, once its last approved call is done
}

// take counts only when the bound is reached, because a count reads a file for each thread.
func (q *filterQuota) take(thread int) bool {
	own, err := filtersOf("/proc/" + strconv.Itoa(thread) + "/status")
	if err != nil {
		return false // the caller was killed
	}
	if q.bound >= q.most {
		q.most = maxFilters()
		if q.bound = q.count(); q.bound >= q.most {
			return false
		}
	}
	q.bound++
	q.approved[thread] = own + 1
	return true
}

// count returns the sum over all threads. An approved call may not have been executed yet.
func (q *filterQuota) count() int {
	total, alive := 0, make(map[int]int, len(q.approved))
	for _, process := range numbers("/proc") {
		tasks := "/proc/" + strconv.Itoa(process) + "/task"
		for _, thread := range numbers(tasks) {
			found, err := filtersOf(tasks + "/" + strconv.Itoa(thread) + "/status")
			if err == errNoFilters {
				return maxInt
			}
			if expected, ok := q.approved[thread]; ok && err == nil {
				found, alive[thread] = max(found, expected), expected
			}
			total += max(0, found-q.inherited)
		}
	}
	q.approved = alive
	return total
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

// filtersOf reads the number of filters from the status of a thread.
func filtersOf(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	_, rest, found := bytes.Cut(text, []byte("\nSeccomp_filters:"))
	if !found {
		return 0, errNoFilters
	}
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	return strconv.Atoi(string(bytes.TrimSpace(line)))
}
