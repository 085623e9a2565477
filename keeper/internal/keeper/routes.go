package keeper

import (
	"strings"

	"skerry/keeper/internal/httpwire"
	"skerry/keeper/internal/process"
)

// handler answers one request.
type handler func(*keeper, *httpwire.Conn, *httpwire.Request)

// route is one row of the protocol. In a pattern, {id} stands for the ID of a process.
type route struct {
	method  string
	pattern string
	handler handler
}

// routes is the whole protocol. docs/design/keeper-protocol.md describes every row; TestRoutesMatchProtocolPage
// compares the two.
var routes = []route{
	{"PUT", "/v1/config", (*keeper).configure},
	{"GET", "/v1/hello", (*keeper).hello},
	{"POST", "/v1/shutdown", (*keeper).shutdown},
	{"GET", "/v1/events", (*keeper).events},

	{"POST", "/v1/processes", (*keeper).start},
	{"GET", "/v1/processes", (*keeper).list},
	{"GET", "/v1/processes/{id}", onProcess(showProcess)},
	{"DELETE", "/v1/processes/{id}", onProcess(removeProcess)},
	{"GET", "/v1/processes/{id}/output", onProcess(output)},
	{"POST", "/v1/processes/{id}/exchange", onProcess(exchange)},
	{"POST", "/v1/processes/{id}/stdin", onProcess(stdin)},
	{"POST", "/v1/processes/{id}/signal", onProcess(sendSignal)},
	{"POST", "/v1/processes/{id}/resize", onProcess(resize)},

	{"GET", "/v1/files", onFile((*fileCall).read)},
	{"PUT", "/v1/files", onFile((*fileCall).write)},
	{"DELETE", "/v1/files", onFile((*fileCall).remove)},
	{"GET", "/v1/files/stat", onFile((*fileCall).stat)},
	{"GET", "/v1/files/list", onFile((*fileCall).list)},
	{"GET", "/v1/files/checksum", onFile((*fileCall).checksum)},
	{"GET", "/v1/files/changed", onFile((*fileCall).changed)},
	{"GET", "/v1/files/lines", onFile((*fileCall).lines)},
	{"GET", "/v1/files/search", onFile((*fileCall).search)},
	{"GET", "/v1/files/watch", onFile((*fileCall).watch)},
	{"GET", "/v1/files/tree", onFile((*fileCall).pack)},
	{"PUT", "/v1/files/tree", onFile((*fileCall).unpack)},
	{"POST", "/v1/files/mkdir", onFile((*fileCall).mkdir)},
	{"POST", "/v1/files/move", onFile((*fileCall).move)},
	{"POST", "/v1/files/copy", onFile((*fileCall).copy)},
	{"POST", "/v1/files/chmod", onFile((*fileCall).chmod)},
	{"POST", "/v1/files/chown", onFile((*fileCall).chown)},
	{"POST", "/v1/files/link", onFile((*fileCall).link)},
	{"POST", "/v1/files/replace", onFile((*fileCall).replace)},
	{"POST", "/v1/files/patch", onFile((*fileCall).patch)},

	{"PUT", "/v1/track", (*keeper).track},
	{"DELETE", "/v1/track", (*keeper).untrack},
	{"GET", "/v1/track/scan", (*keeper).scan},
	{"GET", "/v1/track/wait", (*keeper).waitForChange},
	{"POST", "/v1/track/read", (*keeper).readTracked},

	{"POST", "/v1/ports/wait", (*keeper).waitForPort},
	{"PUT", "/v1/guest-files", (*keeper).putGuestFiles},
	{"PUT", "/v1/guest-files/review", (*keeper).putReview},
}

const processPattern = "/v1/processes/{id}"

// routeKey identifies a route by its whole path or, for a process, by the part after the ID.
type routeKey struct{ method, path string }

// Two maps instead of net/http's ServeMux: no start-up cost, no allocation per request, and no net/http in the binary.
var exactRoutes, processRoutes = indexRoutes()

func indexRoutes() (exact, process map[routeKey]handler) {
	exact, process = map[routeKey]handler{}, map[routeKey]handler{}
	for _, r := range routes {
		if action, found := strings.CutPrefix(r.pattern, processPattern); found {
			process[routeKey{r.method, strings.TrimPrefix(action, "/")}] = r.handler
		} else {
			exact[routeKey{r.method, r.pattern}] = r.handler
		}
	}
	return exact, process
}

// findRoute returns the handler of a request, or nil.
func findRoute(method, path string) handler {
	if h := exactRoutes[routeKey{method, path}]; h != nil {
		return h
	}
	if _, action, found := splitProcessPath(path); found {
		if h := processRoutes[routeKey{method, action}]; h != nil {
			return h
		}
		return onProcess(noProcessRoute)
	}
	return nil
}

// splitProcessPath splits "/v1/processes/{id}/action"; the action may be empty.
func splitProcessPath(path string) (id, action string, found bool) {
	rest, found := strings.CutPrefix(path, "/v1/processes/")
	id, action, _ = strings.Cut(rest, "/")
	return id, action, found
}

// handle answers one request. Until the host has configured the keeper, only the configuration and the greeting are
// served.
func (k *keeper) handle(c *httpwire.Conn, q *httpwire.Request) {
	defer k.idle.Reset(idleDelay)
	h := findRoute(q.Method, q.Path)
	early := h != nil && (q.Path == "/v1/config" || q.Path == "/v1/hello")
	switch {
	case !early && k.current() == nil:
		c.Fail(409, "not_configured", "PUT /v1/config first")
	case h == nil:
		c.Fail(404, "no_route", "no such route: "+q.Method+" "+q.Path)
	default:
		h(k, c, q)
	}
}

// onProcess makes a handler from a function that needs the process named by the path.
func onProcess(serve func(*keeper, *httpwire.Conn, *httpwire.Request, *process.Process)) handler {
	return func(k *keeper, c *httpwire.Conn, q *httpwire.Request) {
		id, _, _ := splitProcessPath(q.Path)
		p := k.processes.Get(id)
		if p == nil {
			c.Fail(404, "no_process", "process not found: "+id)
			return
		}
		serve(k, c, q, p)
	}
}

// noProcessRoute rejects an unknown action. An unknown process is the more useful error, so onProcess checks it first.
func noProcessRoute(_ *keeper, c *httpwire.Conn, q *httpwire.Request, _ *process.Process) {
	c.Fail(405, "no_route", "no such route: "+q.Method+" "+q.Path)
}
