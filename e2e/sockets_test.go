//go:build e2e

package e2e

import (
	"net/url"
	"strconv"
	"strings"
	"testing"

	"example.com/cellmart/platform/cellkit/link/linktest"
)

// All TCP between zones runs through the agents' borders: no process has any other
// connection that leaves its zone (R4).
func TestOnlyAgentsCrossZones(t *testing.T) {
	zoneOf, border := map[uint16]string{}, map[uint16]bool{}
	for _, p := range sys.Processes {
		for name, v := range p.Env {
			if addr := v; strings.HasSuffix(name, "_ADDR") && name != "REDIS_ADDR" && name != "LINK_ADDR" {
				port := portOf(t, addr)
				zoneOf[port] = p.Zone
				border[port] = strings.HasSuffix(name, "BORDER_ADDR")
			}
		}
		if addr, ok := strings.CutPrefix(p.Ready, "tcp://"); ok {
			zoneOf[portOf(t, addr)] = p.Zone
		}
	}
	buyer := register(t, "c1") // some traffic, so that there are connections
	buyer.via = "c2"
	buyer.want(t, 200, "GET", "/wallet", "", nil)
	seen, crossing := 0, 0
	for i := range sys.Processes {
		p := &sys.Processes[i]
		if !p.Alive() {
			continue
		}
		all, err := linktest.Sockets(p.PID)
		if err != nil {
			t.Fatalf("%s: %v", p.Name, err)
		}
		crosser := strings.HasSuffix(p.Name, "/agent") || p.Name == "edge"
		for _, s := range all {
			if s.State != "ESTABLISHED" {
				continue
			}
			seen++
			to, known := zoneOf[s.Remote.Port()]
			if _, mine := zoneOf[s.Local.Port()]; mine {
				continue // somebody came in; their end is looked at too
			}
			switch {
			case !known:
				t.Errorf("%s is connected to %s, which is nobody's here", p.Name, s.Remote)
			case to == p.Zone:
			case crosser && border[s.Remote.Port()]:
				crossing++
			default:
				t.Errorf("%s in zone %q is connected to %s in zone %q past the border", p.Name, p.Zone, s.Remote, to)
			}
		}
	}
	if seen < 50 || crossing < 5 {
		t.Errorf("saw only %d connections, %d of them between zones: the test looks at nothing", seen, crossing)
	}
}

func portOf(t *testing.T, addr string) uint16 {
	t.Helper()
	u, err := url.Parse("tcp://" + addr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseUint(u.Port(), 10, 16)
	if err != nil {
		t.Fatalf("%s: %v", addr, err)
	}
	return uint16(n)
}
