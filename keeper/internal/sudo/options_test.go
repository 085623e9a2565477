package sudo

import (
	"reflect"
	"testing"
)

func TestOptionsAreParsedLikeSudo(t *testing.T) {
	for _, c := range []struct {
		args []string
		want options
	}{
		{[]string{"id"}, options{user: "root", command: []string{"id"}}},
		{[]string{"-n", "-E", "--", "-x"}, options{user: "root", keepEnv: true, command: []string{"-x"}}},
		{[]string{"-nHu", "bob", "id", "-u"}, options{user: "bob", setHome: true, command: []string{"id", "-u"}}},
		{[]string{"-ubob", "id"}, options{user: "bob", command: []string{"id"}}},
		{[]string{"--user=#7", "id"}, options{user: "7", command: []string{"id"}}},
		{[]string{"--user", "bob", "id"}, options{user: "bob", command: []string{"id"}}},
		{[]string{"A=1", "B=", "env"}, options{user: "root", assign: []string{"A=1", "B="}, command: []string{"env"}}},
		{[]string{"--preserve-env=A,B", "env"}, options{user: "root", keep: []string{"A", "B"}, command: []string{"env"}}},
		{[]string{"-i"}, options{user: "root", login: true, command: []string{}}},
	} {
		got, err := parse(c.args)
		if err != nil || !reflect.DeepEqual(*got, c.want) {
			t.Errorf("%q: got %+v, %v; want %+v", c.args, got, err, c.want)
		}
	}
}

func TestUnknownOptionsAreRejected(t *testing.T) {
	for _, args := range [][]string{{}, {"-u"}, {"-Z", "id"}, {"--nosuch", "id"}, {"--nosuch=x", "id"}, {"A=1"}} {
		if got, err := parse(args); err == nil {
			t.Errorf("%q: got %+v", args, got)
		}
	}
}

func TestShellWordsAreQuoted(t *testing.T) {
	if got := quote([]string{"echo", "a b", "$HOME;x'"}); got != `echo a\ b $HOME\;x\'` {
		t.Error(got)
	}
}
