package standby_test

import (
	"time"

	"example.com/cellmart/platform/cellkit/cdc"
	"example.com/cellmart/platform/cellkit/standby"
)

var unitTables = cdc.Tables{
	"cell.slots": nil, "shop.things": nil, "shop.types": nil, "cell.outbox": nil, "cell.inbox": nil, "cell.parked": nil,
	"cell.idempotency": nil, "cell.wallets": nil, "cell.postings": nil, "cell.transfers": nil, "cell.credits": nil,
}

func (c *cell) relayOptions() cdc.Options {
	return cdc.Options{
		Zone: c.name, Pool: c.pool, DSN: c.db.AgentDSN, NATSURL: c.nats.URL, Sink: standby.Sink("c2"), Tables: unitTables,
		Log: c.log, Beat: 200 * time.Millisecond,
	}
}
