package search

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/cellkit/id"
)

func values(pairs ...string) map[string]*string {
	out := map[string]*string{}
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i]] = &pairs[i+1]
	}
	return out
}

func TestNewer(t *testing.T) {
	t.Parallel()
	held := origin{Zone: "c1", Incarnation: "x", LSN: 100, Epoch: 3, Rev: 7}
	for _, tc := range []struct {
		name string
		o    origin
		gone bool
		want bool
	}{
		{"the same again", held, false, true},
		{"a later place, same row version", origin{"c1", "x", 101, 3, 7}, false, true},
		{"an earlier place", origin{"c1", "x", 99, 3, 7}, false, false},
		{"an older revision, replayed", origin{"c1", "x", 40, 3, 6}, false, false},
		{"a newer revision", origin{"c1", "x", 140, 3, 8}, false, true},
		{"the new owner's first", origin{"c2", "y", 5, 4, 1}, false, true},
		{"the old owner's lost tail", origin{"c2", "y", 900, 2, 99}, false, false},
		{"the database was restored", origin{"c1", "z", 10, 1, 1}, false, true},
		{"a replay after the delete", origin{"c1", "x", 99, 3, 7}, true, false},
		{"written again after the delete", origin{"c1", "x", 120, 3, 1}, true, true},
	} {
		if got := tc.o.newer(record{Origin: held, Gone: tc.gone}); got != tc.want {
			t.Errorf("%s: newer = %v", tc.name, got)
		}
	}
}

// S-C08: whatever order changes come in, and however often, the last one counts.
func TestScenario_C08_OldNeverOverwritesNew(t *testing.T) {
	t.Parallel()
	var all []change
	add := func(zone string, lsn uint64, table string, gone bool, v map[string]*string) {
		c, ok := parse(table, v, gone, origin{Zone: zone, Incarnation: "x", LSN: lsn})
		if !ok {
			t.Fatalf("%s isn't searched", table)
		}
		all = append(all, c)
	}
	order := func(epoch, rev, state string) map[string]*string {
		return values("slot", "7", "epoch", epoch, "rev", rev, "id", "16391", "state", state, "currency", "CNY")
	}
	line := func(epoch, rev, title string) map[string]*string {
		return values("slot", "7", "epoch", epoch, "rev", rev, "order_id", "16391", "sku", "5", "seller_id", "32775", "title", title, "price", "10", "quantity", "2")
	}
	add("c1", 10, "orders.orders", false, order("1", "1", "PENDING"))
	add("c1", 10, "orders.lines", false, line("1", "1", "pot"))
	add("c1", 20, "orders.orders", false, order("1", "2", "RESERVED"))
	add("c1", 90, "orders.orders", false, order("1", "9", "CANCELLED")) // the tail that the failover lost
	add("c2", 5, "orders.orders", false, order("2", "1", "PAID"))
	add("c2", 6, "orders.lines", false, line("2", "1", "teapot"))
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		e := &entity{Kind: kindOrder, ID: "16391"}
		list := append(append([]change{}, all...), all...)
		random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		for _, c := range list {
			e.take(c)
		}
		if state, title := e.Root.text("state"), e.Parts["5"].text("title"); state != "PAID" || title != "teapot" {
			t.Fatalf("in the order %v: %s, %s", list, state, title)
		}
	}
}

func TestDeletedStaysDeleted(t *testing.T) {
	t.Parallel()
	e := &entity{Kind: kindProduct, ID: "9"}
	at := func(lsn uint64) origin { return origin{Zone: "global", Incarnation: "x", LSN: lsn} }
	row := values("id", "9", "title", "pot", "active", "t", "version", "4")
	for _, tc := range []struct {
		lsn  uint64
		gone bool
		want bool // is there
	}{{10, false, true}, {20, true, false}, {10, false, false}, {20, true, false}, {30, false, true}, {20, true, true}} {
		v := row
		if tc.gone {
			v = values("id", "9")
		}
		c, _ := parse("catalogw.products", v, tc.gone, at(tc.lsn))
		e.take(c)
		if e.Root.there() != tc.want {
			t.Errorf("after %d (delete %v) it is there: %v", tc.lsn, tc.gone, e.Root.there())
		}
	}
}

// An update that left a large value alone doesn't say it.
func TestUnsentValuesStay(t *testing.T) {
	t.Parallel()
	e := &entity{Kind: kindProduct, ID: "9"}
	for lsn, v := range []map[string]*string{
		values("id", "9", "title", "pot", "description", "long", "active", "t", "version", "1"),
		values("id", "9", "title", "kettle", "active", "t", "version", "2"),
	} {
		c, _ := parse("catalogw.products", v, false, origin{Zone: "global", Incarnation: "x", LSN: uint64(lsn)})
		e.take(c)
	}
	if e.Root.text("title") != "kettle" || e.Root.text("description") != "long" {
		t.Errorf("title %q, description %q", e.Root.text("title"), e.Root.text("description"))
	}
}

func TestHits(t *testing.T) {
	t.Parallel()
	number := func(i id.ID) string { return "N" + i.String() }
	docs := func(e *entity) (out []string) {
		for _, h := range e.hits(number) {
			out = append(out, h.doc)
		}
		return out
	}
	there := func(pairs ...string) record {
		return record{Values: values(pairs...), Origin: origin{Zone: "z", LSN: 1}}
	}
	sku := there("title", "", "price", "5", "currency", "CNY")
	gone := record{Gone: true, Origin: origin{Zone: "z", LSN: 2}}
	line := func(seller string) record {
		return there("seller_id", seller, "title", "x", "price", "5", "quantity", "1")
	}
	for name, tc := range map[string]struct {
		e    entity
		want []string
	}{
		"sold":            {entity{Kind: kindProduct, ID: "1", Root: there("active", "t"), Parts: map[string]record{"2": sku}}, []string{"product/1"}},
		"not sold":        {entity{Kind: kindProduct, ID: "1", Root: there("active", "f"), Parts: map[string]record{"2": sku}}, nil},
		"nothing to buy":  {entity{Kind: kindProduct, ID: "1", Root: there("active", "t"), Parts: map[string]record{"2": gone}}, nil},
		"SKU before it":   {entity{Kind: kindProduct, ID: "1", Parts: map[string]record{"2": sku}}, nil},
		"deleted":         {entity{Kind: kindProduct, ID: "1", Root: gone, Parts: map[string]record{"2": sku}}, nil},
		"of two sellers":  {entity{Kind: kindOrder, ID: "1", Root: there(), Parts: map[string]record{"2": line("8"), "3": line("7"), "4": line("7")}}, []string{"order/1/7", "order/1/8"}},
		"order, no lines": {entity{Kind: kindOrder, ID: "1", Root: there()}, nil},
	} {
		if diff := cmp.Diff(tc.want, docs(&tc.e)); diff != "" {
			t.Errorf("%s: hits (-want +got):\n%s", name, diff)
		}
	}
}
