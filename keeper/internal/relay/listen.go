package relay

import (
	"bufio"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	maxWaiting   = 128              // accepted connections that the host has not fetched
	fetchTimeout = 30 * time.Second // for the host to fetch a connection, and to present its ticket
	ticketSize   = 32
)

// Ready is the first line of Listen. Back: the port on which the host fetches connections.
type Ready struct {
	Port int    `json:"port,omitempty"`
	Path string `json:"path,omitempty"`
	Back int    `json:"back"`
}

// Arrival is one line for each connection. The host connects to Back, sends the ticket, and has the connection.
type Arrival struct {
	Ticket string `json:"ticket"`
	Host   string `json:"host,omitempty"`
	Port   int    `json:"port,omitempty"`
}

// listener holds accepted connections until the host fetches them by their tickets.
type listener struct {
	mu      sync.Mutex
	waiting map[string]net.Conn
	lines   *json.Encoder
}

// Listen accepts connections at `tcp HOST PORT`, `unix PATH` or `agent`, a socket in a new private directory, until
// stdin ends. It returns the exit code.
//
// A connection reaches the host over a second listener on loopback instead of this command's output: the host connects
// to it as to any port, and each connection has its own flow control. A ticket is random and works once, so no other
// program inside can take a connection that was accepted for the host.
func Listen(args []string) int {
	outer, clean, err := open(args)
	if err != nil {
		return fail("listen", err)
	}
	defer clean()
	back, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return fail("listen", err)
	}
	l := &listener{waiting: map[string]net.Conn{}, lines: json.NewEncoder(os.Stdout)}
	if err = l.lines.Encode(ready(outer, back)); err != nil {
		return fail("listen", err)
	}
	go l.accept(outer)
	go l.serve(back)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

func open(args []string) (outer net.Listener, clean func(), err error) {
	if len(args) != 1 || args[0] != "agent" {
		network, address, err := parse(args)
		if err != nil {
			return nil, nil, err
		}
		outer, err = net.Listen(network, address)
		return outer, func() { _ = outer.Close() }, err
	}
	dir, err := os.MkdirTemp("", "skerry-agent-")
	if err != nil {
		return nil, nil, err
	}
	outer, err = net.Listen("unix", filepath.Join(dir, "agent.sock"))
	return outer, func() { _ = os.RemoveAll(dir) }, err
}

func ready(outer, back net.Listener) Ready {
	r := Ready{Back: back.Addr().(*net.TCPAddr).Port}
	switch a := outer.Addr().(type) {
	case *net.TCPAddr:
		r.Port = a.Port
	case *net.UnixAddr:
		r.Path = a.Name
	}
	return r
}

func (l *listener) accept(outer net.Listener) {
	for {
		conn, err := outer.Accept()
		if err != nil {
			fmt.Fprintln(os.Stderr, "listen: "+err.Error())
			os.Exit(1)
		}
		if arrival, ok := l.keep(conn); !ok || l.lines.Encode(arrival) != nil {
			_ = conn.Close()
		}
	}
}

// keep stores a connection for the host; it is closed if the host does not fetch it in time.
func (l *listener) keep(conn net.Conn) (Arrival, bool) {
	random := make([]byte, ticketSize/2)
	_, _ = rand.Read(random) // never fails
	arrival := Arrival{Ticket: hex.EncodeToString(random)}
	if from, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		arrival.Host, arrival.Port = from.IP.String(), from.Port
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) >= maxWaiting {
		return arrival, false
	}
	l.waiting[arrival.Ticket] = conn
	time.AfterFunc(fetchTimeout, func() {
		if late := l.take(arrival.Ticket); late != nil {
			_ = late.Close()
		}
	})
	return arrival, true
}

// take returns the connection of a ticket once. It compares with every ticket in constant time.
func (l *listener) take(ticket string) (found net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for one, conn := range l.waiting {
		if subtle.ConstantTimeCompare([]byte(one), []byte(ticket)) == 1 {
			found = conn
			delete(l.waiting, one)
		}
	}
	return found
}

func (l *listener) serve(back net.Listener) {
	for {
		conn, err := back.Accept()
		if err != nil {
			return
		}
		go l.fetch(conn)
	}
}

// fetch joins the host's connection with the one of its ticket.
func (l *listener) fetch(host net.Conn) {
	_ = host.SetReadDeadline(time.Now().Add(fetchTimeout))
	reader := bufio.NewReaderSize(host, 4<<10)
	ticket := make([]byte, ticketSize)
	if _, err := io.ReadFull(reader, ticket); err != nil {
		_ = host.Close()
		return
	}
	conn := l.take(string(ticket))
	if conn == nil {
		_ = host.Close()
		return
	}
	_ = host.SetReadDeadline(time.Time{})
	join(host, reader, conn)
}

// join copies both ways until both sides have ended, or one fails.
func join(host net.Conn, early *bufio.Reader, conn net.Conn) {
	var both sync.WaitGroup
	way := func(to net.Conn, from io.Reader) {
		defer both.Done()
		if _, err := io.Copy(to, from); err != nil {
			_, _ = host.Close(), conn.Close()
			return
		}
		_ = to.(interface{ CloseWrite() error }).CloseWrite()
	}
	both.Add(2)
	go way(host, conn)
	start, _ := early.Peek(early.Buffered())
	if _, err := conn.Write(start); err != nil {
		_ = host.Close()
	}
	go way(conn, host)
	both.Wait()
	_, _ = host.Close(), conn.Close()
}
