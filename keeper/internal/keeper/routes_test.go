package keeper

import (
	"os"
	"regexp"
	"testing"
)

const protocolPage = "../../../docs/design/keeper-protocol.md"

func TestRoutesMatchProtocolPage(t *testing.T) {
	page, err := os.ReadFile(protocolPage)
	if err != nil {
		t.Fatal(err)
	}
	documented := map[routeKey]bool{}
	for _, found := range regexp.MustCompile("`(GET|PUT|POST|DELETE) (/v1/[^`? ]+)").FindAllSubmatch(page, -1) {
		documented[routeKey{string(found[1]), string(found[2])}] = true
	}
	served := map[routeKey]bool{}
	for _, r := range routes {
		key := routeKey{r.method, r.pattern}
		if served[key] {
			t.Errorf("%s %s is in the table twice", r.method, r.pattern)
		}
		served[key] = true
		if !documented[key] {
			t.Errorf("%s %s is not documented in %s", r.method, r.pattern, protocolPage)
		}
	}
	for key := range documented {
		if !served[key] {
			t.Errorf("%s %s is documented, but the keeper does not serve it", key.method, key.path)
		}
	}
}

func TestEveryRouteIsFound(t *testing.T) {
	id := regexp.MustCompile(`\{id\}`)
	for _, r := range routes {
		if findRoute(r.method, id.ReplaceAllString(r.pattern, "p-1")) == nil {
			t.Errorf("no handler for %s %s", r.method, r.pattern)
		}
	}
	for _, path := range []string{"/", "/v1", "/v1/processes/", "/v2/hello", "/v1/files/", "/v1/files/nothing"} {
		if h := findRoute("GET", path); (h != nil) != (path == "/v1/processes/") {
			t.Errorf("GET %s: handler found: %v", path, h != nil)
		}
	}
}

func BenchmarkFindRoute(b *testing.B) {
	b.ReportAllocs()
	for range b.N {
		if findRoute("POST", "/v1/processes") == nil || findRoute("GET", "/v1/processes/p-1/output") == nil {
			b.Fatal("route not found")
		}
	}
}
