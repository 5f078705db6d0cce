package sockets

import (
	"bufio"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestSocketsOfThisProcess(t *testing.T) {
	t.Parallel()
	for _, listen := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(listen, func(t *testing.T) {
			l, err := net.Listen("tcp", listen)
			if err != nil {
				if listen == "[::1]:0" {
					t.Skip("no IPv6 here:", err)
				}
				t.Fatal(err)
			}
			defer l.Close()
			conn, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			server, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()

			addr := netip.MustParseAddrPort(l.Addr().String())
			client := netip.MustParseAddrPort(conn.LocalAddr().String())
			none := netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
			if !addr.Addr().Is4() {
				none = netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
			}
			want := []Socket{{addr, none, "LISTEN"}, {client, addr, "ESTABLISHED"}, {addr, client, "ESTABLISHED"}}
			of(t, os.Getpid(), func(got []Socket) bool {
				return !slices.ContainsFunc(want, func(s Socket) bool { return !slices.Contains(got, s) })
			})
		})
	}
}

// of looks at a process's sockets until they are as wanted: the kernel may leave a
// row out while others open and close sockets.
func of(t *testing.T, pid int, wanted func([]Socket) bool) {
	t.Helper()
	var all map[int][]Socket
	for range 20 {
		var err error
		if all, err = Of(os.Getpid(), pid); err != nil { // in one namespace: each gets its own
			t.Fatal(err)
		}
		if wanted(all[pid]) {
			return
		}
	}
	t.Errorf("sockets = %v", all[pid])
}

// Another process in the same network namespace: its sockets only.
func TestSocketsOfAnotherProcess(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cmd := exec.Command("bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/$0; echo ready; read -r line <&3", netip.MustParseAddrPort(l.Addr().String()).String()[len("127.0.0.1:"):])
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("bash said %q, %v", line, err)
	}
	want := netip.MustParseAddrPort(l.Addr().String())
	of(t, cmd.Process.Pid, func(got []Socket) bool {
		return len(got) == 1 && got[0].Remote == want && got[0].State == "ESTABLISHED"
	})
}

// The kernel may give a row twice while others open and close sockets.
func TestRepeatedRow(t *testing.T) {
	t.Parallel()
	const row = "   1: 0100007F:B732 0100007F:8AEF 01 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 20 4 30 10 -1\n"
	out := map[int][]Socket{}
	err := readTable(strings.NewReader("  sl  local_address rem_address\n"+row+row), map[string]int{"4711": 12}, out)
	want := Socket{netip.MustParseAddrPort("127.0.0.1:46898"), netip.MustParseAddrPort("127.0.0.1:35567"), "ESTABLISHED"}
	if err != nil || !slices.Equal(out[12], []Socket{want}) {
		t.Errorf("sockets = %v, %v, want once %v", out[12], err, want)
	}
}

func TestNoSuchProcess(t *testing.T) {
	t.Parallel()
	all, err := Of(1<<30, os.Getpid())
	if _, has := all[1<<30]; err != nil || has || len(all) != 1 {
		t.Errorf("a process that isn't there: %v, %v", all, err)
	}
}
