package routing_test

import (
	"crypto/ed25519"
	"fmt"

	"example.com/cellmart/platform/routing"
)

// An ID's low 14 bits are its slot, and the table knows the slot's owner.
func Example() {
	table := routing.Spread([]string{"c1", "c2", "c3", "c4"})
	id := int64(77)<<14 | 9000
	a, ok := table.Slot(routing.SlotOf(id))
	fmt.Println(routing.SlotOf(id), a.Owner, a.Epoch, ok)

	_, ok = table.Slot(routing.FirstUserSlot)
	fmt.Println("a slot that nobody has:", ok)
	// Output:
	// 9000 c3 1 true
	// a slot that nobody has: false
}

// A fifth cell takes its share and nothing else moves.
func ExampleBalanced() {
	four := []routing.Share{{Cell: "c1", Weight: 1}, {Cell: "c2", Weight: 1}, {Cell: "c3", Weight: 1}, {Cell: "c4", Weight: 1}}
	before, _ := routing.Balanced(nil, four)
	after, _ := routing.Balanced(before.Owners, append(four, routing.Share{Cell: "c5", Weight: 1}))
	fmt.Println(before.Report.Slots["c1"], after.Report.Slots["c5"], after.Report.Moved)
	// Output: 4096 3276 3276
}

// Publishing: sign once; whoever has the public key checks and opens.
func ExampleSign() {
	priv := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	spec := routing.Spread([]string{"c1", "c2"}).Spec()
	spec.Version = 1
	table, _ := routing.Build(spec)
	b := routing.Sign(priv, table).Bytes()

	got, err := routing.Open(priv.Public().(ed25519.PublicKey), b)
	fmt.Println(got.Version(), err)
	// Output: 1 <nil>
}
