package accounts

import (
	"strings"
	"testing"
	"unsafe"
)

func TestNumericUsersNeedNoAccountFile(t *testing.T) {
	u, err := Find("4000000000:7")
	if err != nil || u.UID != 4000000000 || u.GID != 7 || len(u.Groups) != 1 {
		t.Errorf("%+v, %v", u, err)
	}
}

func TestGroupAfterColonIsTheOnlyGroup(t *testing.T) {
	for _, name := range []string{"root:root", "root:0", "0:root", "0:0"} {
		u, err := Find(name)
		if err != nil || u.Name != "root" || u.UID != 0 || u.GID != 0 || len(u.Groups) != 1 {
			t.Errorf("%q: %+v, %v", name, u, err)
		}
	}
	if u, err := Find("root:7"); err != nil || u.GID != 7 || u.Groups[0] != 7 {
		t.Errorf("%+v, %v", u, err)
	}
}

func TestInvalidUsersAreUnknown(t *testing.T) {
	for _, name := range []string{"4294967295", "-1", "01", "1000:", "1000:x", ":", ":0", "root:no such group", "0:0:0", "no such user", "a\x00b", "+5", "0x1"} {
		if u, err := Find(name); err == nil {
			t.Errorf("%q: %+v", name, u)
		}
	}
}

func TestMalformedLinesAreSkipped(t *testing.T) {
	for _, fields := range [][]string{
		{"", "x", "0", "0", "", "/", "/bin/sh"}, {"a", "x", "", "0", "", "/", ""}, {"a", "x", "0", "-1", "", "/", ""},
	} {
		if u := parse(fields); u != nil {
			t.Errorf("%q: %+v", fields, u)
		}
	}
	if u := parse([]string{"a", "x", "1", "2", "", "home", "sh"}); u == nil || u.Home != "/" || u.Shell != "/bin/sh" {
		t.Errorf("%+v", u)
	}
}

func TestUserDoesNotKeepTheFileInMemory(t *testing.T) {
	line := "ann:x:1000:1000::/home/ann:/bin/bash"
	fields := strings.Split(line, ":")
	u := parse(fields)
	for i, text := range map[int]string{0: u.Name, 5: u.Home, 6: u.Shell} {
		if text != fields[i] || unsafe.StringData(text) == unsafe.StringData(fields[i]) {
			t.Errorf("%q is a substring of the line", text)
		}
	}
}
