// Command cellmart is the services' binary: `cellmart gateway user order` runs
// those services in one process, `cellmart migrate` runs a command. The table in
// components is the architecture: deleting a service deletes its line.
package main

import (
	"os"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/services/agent"
	"example.com/cellmart/services/catalog"
	"example.com/cellmart/services/console"
	"example.com/cellmart/services/control"
	"example.com/cellmart/services/edge"
	"example.com/cellmart/services/gateway"
	"example.com/cellmart/services/idgen"
	"example.com/cellmart/services/inventory"
	"example.com/cellmart/services/order"
	"example.com/cellmart/services/search"
	"example.com/cellmart/services/user"
)

func main() {
	os.Exit(cellkit.Main(os.Args[1:], os.Getenv, os.Stdout, os.Stderr, components()...))
}

func components() []cellkit.Component {
	return []cellkit.Component{
		// in every cell
		{Name: "gateway", Doc: "answers people, serves or forwards to the user's home", Vars: gateway.Vars, Run: gateway.Run},
		{Name: "user", Doc: "accounts, claims, sessions, wallets, transfers", Vars: user.Vars, Run: user.Run},
		{Name: "order", Doc: "carts and orders", Vars: order.Vars, Run: order.Run},
		{Name: "inventory", Doc: "stock and its holds, at the seller's home", Vars: inventory.Vars, Run: inventory.Run},
		{Name: "catalog", Doc: "the cell's full read copy of the catalog", Vars: catalog.Vars, Run: catalog.Run},
		{Name: "agent", Doc: "the zone's border: links, route table, lease, messages out", Vars: agent.Vars, Run: agent.Run},
		// once, in the global zone
		{Name: "control", Doc: "owner of the route table", Vars: control.Vars, Run: control.Run},
		{Name: "console", Doc: "the operators' pages, in control's process", Vars: console.Vars, Run: console.Run},
		{Name: "idgen", Doc: "leases ranges of IDs", Vars: idgen.Vars, Run: idgen.Run},
		{Name: "catalog-writer", Doc: "the one place that writes the catalog", Vars: catalog.WriterVars, Run: catalog.RunWriter},
		{Name: "search", Doc: "finds products, and orders for their sellers, from all zones' changes", Vars: search.Vars, Run: search.Run},
		// in no zone
		{Name: "edge", Doc: "stands for DNS and load balancing: picks a gateway", Vars: edge.Vars, Run: edge.Run},
		// parts and commands
		{Name: "nats", Doc: "a NATS server with JetStream, in this binary", Vars: natsVars, Run: runNATS},
		{Name: "migrate", Doc: "brings a database to the newest schema", Vars: migrateVars, Run: runMigrate, Once: true},
		{Name: "pki", Doc: "makes the demo's certificates and keys: pki DIR ZONE...", Run: link.RunPKI, Once: true},
		{Name: "keys", Doc: "makes the demo's keys and secrets once, and gives a zone its own", Vars: keysVars, Run: runKeys, Once: true},
		{Name: "check", Doc: "asks addresses for 200, for container health: check URL...", Run: runCheck, Once: true},
		{Name: "seed", Doc: "fills a fresh system through its public API", Vars: seedVars, Run: runSeed, Once: true},
	}
}
