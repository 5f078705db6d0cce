package local

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"
)

// Options of a demo.
type Options struct {
	Root     string // folder that gets .demo, and has bin/cellmart
	Bin      string // the cellmart binary; default Root/bin/cellmart
	Cells    int    // 2 to 8, default 4
	PortBase int    // the edge's port, default 8080; see ports
	Seed     bool
	Mode     string                           // of the gateways: forward (default) or redirect
	Log      func(format string, args ...any) // progress, may be nil
}

// The program's address book. The zone global has number 0, cell k number k;
// each zone has 30 ports from base+100.
const (
	portPG = iota
	portIDGenPG
	portRedis
	portNATS
	portAgent
	portBorder
	portLink
	portAgentPeer
	portGatewayPeer
	portUser
	portOrder
	portInventory
	portCatalog
	portControl
	portIDGen
	portSearch
	portInternal // and the following: /livez, /readyz, /metrics of the zone's services
	portsPerZone = 30

	// Spare addresses, from the end: a second instance of a service and its
	// internal listener. The gateways, and the global agent, know them; usually nothing runs there.
	portSpare         = 29 // order, idgen
	portSpareInternal = 28
)

// layout knows every address before anything runs.
type layout struct {
	o       Options
	dir     string // state, logs, keys
	data    string // databases and stores
	secrets Secrets
	pubkey  string // control's, base64
}

func (l *layout) port(zone, which int) int { return l.o.PortBase + 100 + zone*portsPerZone + which }

func (l *layout) addr(zone, which int) string {
	return fmt.Sprintf("127.0.0.1:%d", l.port(zone, which))
}

// Gateway is where people reach the gateway of cell k from 1.
func (l *layout) gateway(k int) string { return fmt.Sprintf("127.0.0.1:%d", l.o.PortBase+20+k) }

// console is where operators reach it, in control's process.
func (l *layout) console() string { return fmt.Sprintf("127.0.0.1:%d", l.o.PortBase+10) }

func (l *layout) edge() string { return fmt.Sprintf("127.0.0.1:%d", l.o.PortBase) }

func cellName(zone int) string {
	if zone == 0 {
		return "global"
	}
	return fmt.Sprintf("c%d", zone)
}

func (l *layout) cells() string {
	var names []string
	for k := 1; k <= l.o.Cells; k++ {
		names = append(names, cellName(k))
	}
	return strings.Join(names, ",")
}

func (l *layout) dsn(role, password string, zone, port int) string {
	return fmt.Sprintf("postgres://%s:%s@%s/cellmart?sslmode=disable", role, password, l.addr(zone, port))
}

func (l *layout) pki() string { return filepath.Join(l.dir, "pki") }

// Process is one process of the demo: how to start it again, and which it is.
type Process struct {
	Name  string            `json:"name"` // c1/order
	Zone  string            `json:"zone"`
	Argv  []string          `json:"argv"`
	Env   map[string]string `json:"env,omitempty"`
	Dir   string            `json:"dir"`
	Owner string            `json:"owner,omitempty"` // user to run as, when root
	Ready string            `json:"ready,omitempty"` // URL of /readyz, or tcp://host:port
	PID   int               `json:"pid"`
	Start uint64            `json:"start"` // the process's start time, in clock ticks after boot
}

// service makes the entry of one service; n is its place among the zone's
// internal listeners.
func (l *layout) service(zone, n int, name string, env map[string]string) Process {
	cell := cellName(zone)
	internal := l.addr(zone, portInternal+n)
	prefix := strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
	all := map[string]string{
		"CELL": cell, "CELLS": l.cells(), prefix + "_INTERNAL_ADDR": internal,
		"AGENT_URL": "http://" + l.addr(zone, portAgent),
		"LINK_ADDR": l.addr(zone, portLink),
		"NATS_URL":  "nats://" + l.addr(zone, portNATS),
		"ROUTE_DIR": filepath.Join(l.data, cell, "route"),
		"ROUTE_KEY": l.pubkey,
		// Many programs share the machine: looking for work on a second processor costs a quarter of their CPU.
		"GOMAXPROCS": "1", "GOGC": "100",
	}
	if zone > 0 {
		all["REDIS_ADDR"] = l.addr(zone, portRedis)
		all["PG_DSN"] = l.dsn("cellmart_app", l.secrets.App, zone, portPG)
	}
	for k, v := range env {
		all[k] = v
	}
	return Process{
		Name: cell + "/" + name, Zone: cell, Argv: []string{l.o.Bin, name}, Env: all, Dir: l.dir,
		Ready: "http://" + internal + "/readyz",
	}
}

// peers lists the borders of all zones but one.
func (l *layout) peers(but int) string {
	var out []string
	for z := 0; z <= l.o.Cells; z++ {
		if z != but {
			out = append(out, cellName(z)+"="+l.addr(z, portBorder))
		}
	}
	return strings.Join(out, ",")
}

func (l *layout) agent(zone, n int) Process {
	targets := []string{"agent=" + l.addr(zone, portAgentPeer), "nats=" + l.addr(zone, portNATS)}
	env := map[string]string{
		"AGENT_ADDR": l.addr(zone, portAgent), "AGENT_PEER_ADDR": l.addr(zone, portAgentPeer),
		"AGENT_BORDER_ADDR": l.addr(zone, portBorder), "AGENT_LINK_ADDR": l.addr(zone, portLink),
		"AGENT_PEERS": l.peers(zone), "AGENT_PKI_DIR": l.pki(), "OPERATOR_KEY": l.secrets.Operator,
		"AGENT_OUTPUT_COMMIT": "timed",
	}
	if zone == 0 {
		targets = append(targets, "control="+l.addr(0, portControl), "idgen="+l.addr(0, portIDGen)+"|"+l.addr(0, portSpare), "catalog="+l.addr(0, portCatalog), "search="+l.addr(0, portSearch))
		env["AGENT_CDC_DSN"] = l.dsn("cellmart_agent", l.secrets.Agent, 0, portPG)
	} else {
		targets = append(targets, "gateway="+l.addr(zone, portGatewayPeer), "gateway-public="+l.gateway(zone))
		env["AGENT_PG_DSN"] = l.dsn("cellmart_agent", l.secrets.Agent, zone, portPG)
		env["AGENT_APPLIER_DSN"] = l.dsn("cellmart_applier", l.secrets.Applier, zone, portPG)
	}
	env["AGENT_TARGETS"] = strings.Join(targets, ",")
	return l.service(zone, n, "agent", env)
}

// Services lists the services of a demo of so many cells, as they would be
// started, with secrets of nobody.
func Services(cells int) []Process {
	l := &layout{o: Options{Cells: cells, PortBase: 8080, Bin: "cellmart"}, secrets: newSecrets(), pubkey: "key"}
	return l.services()
}

// services lists what runs on top of the databases, brokers and caches.
func (l *layout) services() []Process {
	global := l.dsn("cellmart_app", l.secrets.App, 0, portPG)
	control := l.service(0, 1, "control", map[string]string{
		"CONTROL_ADDR": l.addr(0, portControl), "CONTROL_PG_DSN": global, "CONTROL_OPERATOR_KEY": l.secrets.Operator,
		"CONTROL_PKI_DIR": l.pki(), "CONTROL_INIT": l.initial(),
		"CONSOLE_ADDR": l.console(), "CONSOLE_PG_DSN": global, "CONSOLE_OPERATOR_KEY": l.secrets.Operator,
		"CONSOLE_FIRST_PASSWORD": l.secrets.Console, "CONSOLE_CONTROL_URL": "http://" + l.addr(0, portControl),
		"CONSOLE_AGENTS": l.each(portAgent), "CONSOLE_GATEWAYS": l.each(portInternal + 5),
		"CONSOLE_SEARCH_URL": "http://" + l.addr(0, portInternal+5),
		"CONSOLE_SHOP_URL":   "http://" + l.edge(),
		"CONSOLE_CELLCTL":    filepath.Join(filepath.Dir(l.o.Bin), "cellctl"), "CONSOLE_ROOT": l.o.Root,
	})
	control.Argv = append(control.Argv, "console")
	all := []Process{
		l.agent(0, 0),
		control,
		l.service(0, 2, "idgen", map[string]string{
			"IDGEN_ADDR": l.addr(0, portIDGen), "IDGEN_PG_DSN": l.dsn("cellmart_app", l.secrets.App, 0, portIDGenPG),
		}),
		l.service(0, 3, "catalog-writer", map[string]string{
			"CATALOG_WRITER_ADDR": l.addr(0, portCatalog), "CATALOG_WRITER_PG_DSN": global,
		}),
	}
	all = append(all, l.service(0, 5, "search", map[string]string{
		"SEARCH_ADDR": l.addr(0, portSearch), "SEARCH_DIR": filepath.Join(l.data, "global", "search"),
		"ORDER_NUMBER_KEY": l.secrets.Numbers, "CURSOR_KEY": l.secrets.Cursors,
	}))
	for k := 1; k <= l.o.Cells; k++ {
		all = append(all, l.cell(k)...)
	}
	var edges []string
	for k := 1; k <= l.o.Cells; k++ {
		edges = append(edges, cellName(k)+"="+l.addr(k, portBorder))
	}
	edge := l.service(0, 4, "edge", map[string]string{
		"EDGE_ADDR": l.edge(), "EDGE_CELLS": strings.Join(edges, ","), "EDGE_PKI": l.pki(), "EDGE_REGIONS": l.regions(),
		"DEMO_FILE": filepath.Join(l.dir, "logins.json"),
	})
	edge.Name, edge.Zone = "edge", ""
	return append(all, edge)
}

func (l *layout) cell(k int) []Process {
	url := func(port int) string { return "http://" + l.addr(k, port) }
	return []Process{
		l.agent(k, 0),
		l.service(k, 1, "user", map[string]string{
			"USER_ADDR": l.addr(k, portUser), "USER_TOKEN_KEY": filepath.Join(l.pki(), "token."+cellName(k)+".key"),
			"USER_CLAIM_KEY": l.secrets.Claims, "CURSOR_KEY": l.secrets.Cursors,
		}),
		l.service(k, 2, "order", map[string]string{
			"ORDER_ADDR": l.addr(k, portOrder), "ORDER_NUMBER_KEY": l.secrets.Numbers, "CURSOR_KEY": l.secrets.Cursors,
			"ORDER_CATALOG_URL": url(portCatalog), "ORDER_USER_URL": url(portUser),
		}),
		l.service(k, 3, "inventory", map[string]string{
			"INVENTORY_ADDR": l.addr(k, portInventory), "CURSOR_KEY": l.secrets.Cursors,
			"INVENTORY_CATALOG_URL": url(portCatalog),
		}),
		l.service(k, 4, "catalog", map[string]string{
			"CATALOG_ADDR": l.addr(k, portCatalog), "CURSOR_KEY": l.secrets.Cursors,
		}),
		l.service(k, 5, "gateway", map[string]string{
			"GATEWAY_ADDR": l.gateway(k), "GATEWAY_PEER_ADDR": l.addr(k, portGatewayPeer),
			"GATEWAY_USER_URL": url(portUser), "GATEWAY_ORDER_URL": url(portOrder) + "," + url(portSpare), "GATEWAY_INVENTORY_URL": url(portInventory),
			"GATEWAY_CATALOG_URL": url(portCatalog), "ORDER_NUMBER_KEY": l.secrets.Numbers,
			"GATEWAY_MODE": cmp.Or(l.o.Mode, "forward"), "GATEWAY_PUBLIC_URLS": l.public(),
			"DEMO_FILE": filepath.Join(l.dir, "logins.json"),
		}),
	}
}

// each lists one address of every cell.
func (l *layout) each(which int) string {
	var out []string
	for k := 1; k <= l.o.Cells; k++ {
		out = append(out, cellName(k)+"=http://"+l.addr(k, which))
	}
	return strings.Join(out, ",")
}

// public is where people reach the gateways.
func (l *layout) public() string {
	var out []string
	for k := 1; k <= l.o.Cells; k++ {
		out = append(out, cellName(k)+"=http://"+l.gateway(k))
	}
	return strings.Join(out, ",")
}

// regions of the demo's cells, in turn.
var regionNames = []string{"north", "south", "east", "west"}

// Region is that of cell k from 1.
func Region(k int) string { return regionNames[(k-1)%len(regionNames)] }

func (l *layout) regions() string {
	var out []string
	for k := 1; k <= l.o.Cells; k++ {
		out = append(out, cellName(k)+"="+Region(k))
	}
	return strings.Join(out, ",")
}

func (l *layout) initial() string {
	var out []string
	for k := 1; k <= l.o.Cells; k++ {
		out = append(out, fmt.Sprintf("%s:%s:100", cellName(k), Region(k)))
	}
	return strings.Join(out, ",")
}

// stores lists the databases, brokers and caches.
func (l *layout) stores(programs programs) []Process {
	var all []Process
	postgres := func(zone, port int, name string) {
		data := filepath.Join(l.data, cellName(zone), name)
		all = append(all, Process{
			Name: cellName(zone) + "/" + name, Zone: cellName(zone), Dir: data, Owner: programs.pgUser,
			Argv: []string{
				filepath.Join(programs.pgBin, "postgres"), "-D", data,
				"-c", "listen_addresses=127.0.0.1", "-c", fmt.Sprintf("port=%d", l.port(zone, port)),
				"-c", "unix_socket_directories=", "-c", "max_connections=150", "-c", "shared_buffers=32MB",
				"-c", "wal_level=logical", "-c", "max_slot_wal_keep_size=2GB", "-c", "max_locks_per_transaction=256",
				"-c", "max_wal_size=512MB", "-c", "autovacuum_naptime=5min", "-c", "wal_writer_delay=2s", "-c", "bgwriter_delay=2s",
				"-c", "log_min_messages=warning", "-c", "log_checkpoints=off",
			},
			Ready: "tcp://" + l.addr(zone, port),
		})
	}
	natsServer := func(zone int) {
		cell := cellName(zone)
		all = append(all, Process{
			Name: cell + "/nats", Zone: cell, Argv: []string{l.o.Bin, "nats"}, Dir: l.dir,
			Env: map[string]string{
				"CELL": cell, "NATS_ADDR": l.addr(zone, portNATS), "NATS_DIR": filepath.Join(l.data, cell, "nats"),
				"GOMAXPROCS": "1", "GOGC": "100",
			},
			Ready: "tcp://" + l.addr(zone, portNATS),
		})
	}
	postgres(0, portPG, "postgres")
	postgres(0, portIDGenPG, "idgen-postgres")
	natsServer(0)
	for k := 1; k <= l.o.Cells; k++ {
		postgres(k, portPG, "postgres")
		natsServer(k)
		all = append(all, Process{
			Name: cellName(k) + "/redis", Zone: cellName(k), Dir: l.dir,
			Argv: []string{
				programs.redis, "--bind", "127.0.0.1", "--port", fmt.Sprint(l.port(k, portRedis)), "--save", "", "--appendonly", "no",
				"--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru", "--hz", "1", "--dir", l.dir,
			},
			Ready: "tcp://" + l.addr(k, portRedis),
		})
	}
	return all
}

// migrations lists the set-up runs, one for each database.
func (l *layout) migrations() []Process {
	run := func(zone, port int, kind string) Process {
		return Process{
			Name: cellName(zone) + "/migrate-" + kind, Argv: []string{l.o.Bin, "migrate"}, Dir: l.dir,
			Env: map[string]string{
				"MIGRATE_KIND": kind, "MIGRATE_CELL": cellName(zone), "MIGRATE_ORDINAL": fmt.Sprint(zone),
				"MIGRATE_SUPER_DSN":        fmt.Sprintf("postgres://postgres:%s@%s/postgres?sslmode=disable", l.secrets.Super, l.addr(zone, port)),
				"MIGRATE_PASSWORD_MIGRATE": l.secrets.Migrate, "MIGRATE_PASSWORD_APP": l.secrets.App,
				"MIGRATE_PASSWORD_AGENT": l.secrets.Agent, "MIGRATE_PASSWORD_APPLIER": l.secrets.Applier,
			},
		}
	}
	all := []Process{run(0, portPG, "global"), run(0, portIDGenPG, "idgen")}
	for k := 1; k <= l.o.Cells; k++ {
		all = append(all, run(k, portPG, "cell"))
	}
	return all
}
