package console

import (
	"math"
	"slices"

	"example.com/cellmart/platform/routing"
)

// The map's geometry.
const (
	mapWide, mapHigh = 520, 420
	mapRadius        = 160
)

// Map is all zones on a circle, and the links between all of them: no two lines lie on
// each other.
type Map struct {
	Wide, High int
	Nodes      []Node
	Edges      []Edge
}

// Node is a zone on the map.
type Node struct {
	Name, Class string // known, old, failed, unknown; cut
	X, Y        int
}

// Edge is a link on the map.
type Edge struct {
	Class          string // up, down, unknown
	Title          string
	X1, Y1, X2, Y2 int
}

func (v viewer) mapOf(links []LinkRow) Map {
	m := Map{Wide: mapWide, High: mapHigh}
	at := map[string]Node{}
	place := func(zone string, x, y float64) {
		r := v.s.Zones[zone]
		n := Node{Name: zone, Class: r.State(v.now, v.each), X: int(math.Round(x)), Y: int(math.Round(y))}
		if r.Has() && cut(r.Value) {
			n.Class += " cut"
		}
		at[zone] = n
		m.Nodes = append(m.Nodes, n)
	}
	zones := append(slices.Clone(v.s.Cells), routing.Global)
	for i, zone := range zones {
		turn := 2 * math.Pi * (float64(i+1)/float64(len(zones)) - .25) // the last one, global, is at the top
		place(zone, mapWide/2+mapRadius*math.Cos(turn), mapHigh/2+mapRadius*math.Sin(turn))
	}
	for _, l := range links {
		a, b := at[l.A], at[l.B]
		m.Edges = append(m.Edges, Edge{
			Class: l.State, Title: l.A + " - " + l.B + ": " + v.l.T("link."+l.State), X1: a.X, Y1: a.Y, X2: b.X, Y2: b.Y,
		})
	}
	return m
}
