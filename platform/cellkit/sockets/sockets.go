package sockets

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Socket is one TCP socket of a process.
type Socket struct {
	Local  netip.AddrPort
	Remote netip.AddrPort // 0.0.0.0:0 for a listener
	State  string         // ESTABLISHED, LISTEN, ... as netstat says
}

// states are the kernel's numbers (include/net/tcp_states.h).
var states = [...]string{
	1: "ESTABLISHED", 2: "SYN_SENT", 3: "SYN_RECV", 4: "FIN_WAIT1", 5: "FIN_WAIT2", 6: "TIME_WAIT",
	7: "CLOSE", 8: "CLOSE_WAIT", 9: "LAST_ACK", 10: "LISTEN", 11: "CLOSING", 12: "NEW_SYN_RECV",
}

// Of lists the TCP sockets that each of the processes has open, IPv4-mapped
// addresses as IPv4, sorted by local address.
func Of(pids ...int) (map[int][]Socket, error) {
	owner := map[string]map[string]int{} // by network namespace: process by inode
	procOf := map[string]string{}        // one process's folder for each namespace
	out := map[int][]Socket{}
	for _, pid := range pids {
		proc := filepath.Join("/proc", strconv.Itoa(pid))
		space, err := os.Readlink(filepath.Join(proc, "ns", "net"))
		if err == nil {
			if owner[space] == nil {
				owner[space], procOf[space] = map[string]int{}, proc
			}
			err = socketInodes(filepath.Join(proc, "fd"), func(inode string) { owner[space][inode] = pid })
		}
		if gone(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("sockets of process %d: %w", pid, err)
		}
		out[pid] = nil
	}
	for space, proc := range procOf {
		for _, table := range []string{"net/tcp", "net/tcp6"} {
			f, err := os.Open(filepath.Join(proc, table))
			if err == nil {
				err = readTable(f, owner[space], out)
				f.Close() //nolint:errcheck // only read
			}
			if gone(err) && table == "net/tcp6" {
				continue // a kernel without IPv6
			}
			if err != nil {
				return nil, fmt.Errorf("sockets: %s: %w", table, err)
			}
		}
	}
	for _, all := range out {
		slices.SortFunc(all, func(a, b Socket) int {
			if c := a.Local.Compare(b.Local); c != 0 {
				return c
			}
			return a.Remote.Compare(b.Remote)
		})
	}
	return out, nil
}

func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// socketInodes reads the links named socket:[inode].
func socketInodes(dir string, found func(inode string)) error {
	fds, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, fd := range fds {
		link, err := os.Readlink(filepath.Join(dir, fd.Name()))
		if err != nil {
			continue // closed meanwhile
		}
		if inode, ok := strings.CutPrefix(link, "socket:["); ok {
			found(strings.TrimSuffix(inode, "]"))
		}
	}
	return nil
}

// readTable picks the rows of a /proc/PID/net/tcp that have an owner; the table
// has every socket of the network namespace. The kernel makes the table while it is
// read, so a row may come twice when others open and close sockets meanwhile: the
// first counts.
func readTable(table io.Reader, owner map[string]int, out map[int][]Socket) error {
	lines := bufio.NewScanner(table)
	lines.Scan() // the heading
	for lines.Scan() {
		cols := strings.Fields(lines.Text())
		if len(cols) < 10 {
			continue
		}
		pid, known := owner[cols[9]]
		if !known {
			continue
		}
		s, err := parseRow(cols)
		if err != nil {
			return fmt.Errorf("%q: %w", lines.Text(), err)
		}
		out[pid] = append(out[pid], s)
		delete(owner, cols[9])
	}
	return lines.Err()
}

func parseRow(cols []string) (Socket, error) {
	local, err := parseAddr(cols[1])
	if err != nil {
		return Socket{}, err
	}
	remote, err := parseAddr(cols[2])
	if err != nil {
		return Socket{}, err
	}
	n, err := strconv.ParseUint(cols[3], 16, 8)
	if err != nil {
		return Socket{}, err
	}
	state := fmt.Sprintf("STATE_%d", n)
	if n < uint64(len(states)) && states[n] != "" {
		state = states[n]
	}
	return Socket{Local: local, Remote: remote, State: state}, nil
}

// parseAddr reads ADDRESS:PORT in hex. The kernel prints the address as 32-bit
// words of the machine's byte order, the port as a number.
func parseAddr(s string) (netip.AddrPort, error) {
	host, port, ok := strings.Cut(s, ":")
	b, err := hex.DecodeString(host)
	if !ok || err != nil || len(b)%4 != 0 {
		return netip.AddrPort{}, fmt.Errorf("address %q", s)
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	addr, ok := netip.AddrFromSlice(b)
	n, err := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil {
		return netip.AddrPort{}, fmt.Errorf("address %q", s)
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(n)), nil
}
