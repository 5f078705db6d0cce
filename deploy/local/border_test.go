package local

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/cellkit/sockets"
)

func TestBorder(t *testing.T) {
	t.Parallel()
	at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port) }
	listens := func(port uint16) sockets.Socket { return sockets.Socket{Local: at(port), State: "LISTEN"} }
	to := func(from, port uint16, state string) sockets.Socket {
		return sockets.Socket{Local: at(from), Remote: at(port), State: state}
	}
	const up = "ESTABLISHED"
	agent := func(zone, border string) *Process {
		return &Process{Name: zone + "/agent", Zone: zone, Env: map[string]string{"AGENT_BORDER_ADDR": border}}
	}
	running := map[int]*Process{
		1: {Name: "c1/catalog", Zone: "c1"}, 2: {Name: "c1/redis", Zone: "c1"}, 3: {Name: "c3/redis", Zone: "c3"},
		4: agent("c1", "127.0.0.1:104"), 5: agent("c3", "127.0.0.1:304"), 6: {Name: "edge"},
	}
	open := func(catalog ...sockets.Socket) map[int][]sockets.Socket {
		return map[int][]sockets.Socket{
			1: append(slices.Clone(catalog), listens(101)), 2: {listens(102), to(102, 50001, up)}, 3: {listens(302), to(302, 50003, up)},
			4: {listens(104), listens(105), to(50004, 304, up), to(104, 50005, up)},
			5: {listens(304), listens(305), to(50005, 104, up), to(304, 50004, up)},
			6: {listens(100), to(50006, 304, "SYN_SENT"), to(100, 60000, up)},
		}
	}
	own := to(50001, 102, up)
	for name, tc := range map[string]struct {
		catalog []sockets.Socket
		want    []string
	}{
		"its own Redis":              {[]sockets.Socket{own}, nil},
		"another cell's Redis":       {[]sockets.Socket{own, to(50003, 302, up)}, []string{"c1/catalog is connected to 127.0.0.1:302 of c3/redis"}},
		"tries another cell's Redis": {[]sockets.Socket{own, to(50003, 302, "SYN_SENT")}, []string{"c1/catalog is connected to 127.0.0.1:302 of c3/redis"}},
		"was connected":              {[]sockets.Socket{own, to(50003, 302, "TIME_WAIT")}, nil},
		"another cell's border":      {[]sockets.Socket{own, to(50007, 304, up)}, []string{"c1/catalog is connected to 127.0.0.1:304 of c3/agent"}},
		"another cell's link":        {[]sockets.Socket{own, to(50007, 305, up)}, []string{"c1/catalog is connected to 127.0.0.1:305 of c3/agent"}},
		"the world":                  {[]sockets.Socket{own, to(50007, 443, up)}, []string{"c1/catalog is connected to 127.0.0.1:443, which is nobody's here"}},
		"two alike":                  {[]sockets.Socket{own, to(50007, 302, up), to(50008, 302, up)}, []string{"c1/catalog is connected to 127.0.0.1:302 of c3/redis"}},
	} {
		got := border(running, open(tc.catalog...))
		if d := cmp.Diff(tc.want, got.Foreign); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
		if got.Inside != 1 || got.Between != 3 || got.Operators != 0 {
			t.Errorf("%s: %d connections inside, %d between zones and %d of operators, want 1, 3 and 0", name, got.Inside, got.Between, got.Operators)
		}
	}

	// The console may ask whom it was given, and nobody else.
	running[7] = &Process{Name: "global/control", Zone: "global", Env: map[string]string{"CONSOLE_AGENTS": "c3=http://127.0.0.1:305", "CONSOLE_GATEWAYS": "c1=http://127.0.0.1:101"}}
	all := open(own)
	all[7] = []sockets.Socket{to(50009, 305, up), to(50010, 101, up), to(50011, 302, up)}
	all[1] = append(all[1], to(50012, 305, up))
	got := border(running, all)
	want := []string{"c1/catalog is connected to 127.0.0.1:305 of c3/agent", "global/control is connected to 127.0.0.1:302 of c3/redis"}
	if d := cmp.Diff(want, got.Foreign); d != "" || got.Operators != 2 {
		t.Errorf("the console: %d connections of operators, want 2; foreign (-want +got):\n%s", got.Operators, d)
	}
}
