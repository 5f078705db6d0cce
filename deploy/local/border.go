package local

import (
	"fmt"
	"slices"
	"strings"

	"example.com/cellmart/platform/cellkit/sockets"
)

// Border is who is connected where, as the kernel knows it.
type Border struct {
	Inside    int      // connections within a zone
	Between   int      // from an agent, or the edge, to another zone's border
	Operators int      // from the console to what it watches; cellctl comes the same way
	Foreign   []string // those that leave a zone past the border: who, and to where
}

// Border looks at the open connections of all processes. Only agents and the edge
// may have any that leaves its zone, and only to a border (R4). The console is no part of the
// system but somebody who looks at it: it has the operators' way, to the addresses that
// it was given and no others, and nothing else goes there.
func (s *State) Border() (Border, error) {
	var pids []int
	running := map[int]*Process{}
	for i := range s.Processes {
		if p := &s.Processes[i]; p.Alive() {
			pids = append(pids, p.PID)
			running[p.PID] = p
		}
	}
	open, err := sockets.Of(pids...)
	if err != nil {
		return Border{}, err
	}
	return border(running, open), nil
}

func border(running map[int]*Process, open map[int][]sockets.Socket) Border {
	server := map[uint16]*Process{} // by the port that it listens on
	for pid, all := range open {
		for _, x := range all {
			if x.State == "LISTEN" {
				server[x.Local.Port()] = running[pid]
			}
		}
	}
	var out Border
	for pid, all := range open {
		p := running[pid]
		crosser := strings.HasSuffix(p.Name, "/agent") || p.Name == "edge"
		for _, x := range all {
			if x.State != "ESTABLISHED" && x.State != "SYN_SENT" {
				continue
			}
			if server[x.Local.Port()] == p {
				continue // somebody came in; their end is looked at
			}
			to := server[x.Remote.Port()]
			switch {
			case to == nil:
				out.Foreign = append(out.Foreign, fmt.Sprintf("%s is connected to %s, which is nobody's here", p.Name, x.Remote))
			case to.Zone == p.Zone:
				out.Inside++
			case crosser && x.Remote.String() == to.Env["AGENT_BORDER_ADDR"]:
				out.Between++
			case watches(p, x.Remote.String()):
				out.Operators++
			default:
				out.Foreign = append(out.Foreign, fmt.Sprintf("%s is connected to %s of %s", p.Name, x.Remote, to.Name))
			}
		}
	}
	slices.Sort(out.Foreign)
	out.Foreign = slices.Compact(out.Foreign)
	return out
}

// watches says that the process is the console and was given that address.
func watches(p *Process, addr string) bool {
	for pair := range strings.SplitSeq(p.Env["CONSOLE_AGENTS"]+","+p.Env["CONSOLE_GATEWAYS"], ",") {
		if _, url, _ := strings.Cut(pair, "="); url == "http://"+addr {
			return true
		}
	}
	return false
}
