package console

import (
	"fmt"
	"strings"
	"time"
)

// The charts' geometry.
const (
	chartWide, chartHigh = 600, 120
	chartColours         = 8
)

// Chart is one figure of all cells over the last 15 minutes.
type Chart struct {
	Key        string // its title's text is chart.KEY
	Wide, High int
	Top        string // what the upper edge stands for
	Lines      []ChartLine
	Empty      bool // nothing is known
}

// ChartLine is one cell's; it's broken where nothing is known.
type ChartLine struct {
	Cell   string
	Colour int // 1 to 8
	Parts  []string
	Last   Fig
}

func (v viewer) charts() []Chart {
	return []Chart{
		v.chart("traffic", 1, func(p Point) *float64 { return p.PerSecond }, func(f float64) string { return fmt.Sprintf("%.1f/s", f) }),
		v.chart("errors", .01, func(p Point) *float64 { return p.Errors }, percent),
		v.chart("p99", .01, func(p Point) *float64 { return p.P99 }, func(f float64) string { return fmt.Sprintf("%.1f ms", 1000*f) }),
		v.chart("closed", 1, func(p Point) *float64 { return p.Closed }, percent),
	}
}

// chart draws one figure; its upper edge is the largest value, and at least least.
func (v viewer) chart(key string, least float64, of func(Point) *float64, text func(float64) string) Chart {
	top := least
	for _, h := range v.s.History {
		for _, p := range h {
			if f := of(p); f != nil {
				top = max(top, *f)
			}
		}
	}
	c := Chart{Key: key, Wide: chartWide, High: chartHigh, Top: text(top), Empty: true}
	for i, cell := range v.s.Cells {
		l := ChartLine{Cell: cell, Colour: i%chartColours + 1, Last: v.unknown()}
		var part []string
		end := func() {
			if len(part) == 1 {
				part = append(part, part[0]) // a dot, by its round ends
			}
			if len(part) > 0 {
				l.Parts = append(l.Parts, strings.Join(part, " "))
			}
			part = nil
		}
		for _, p := range v.s.History[cell] {
			f := of(p)
			if f == nil {
				end()
				continue
			}
			x := chartWide * (1 - float64(v.now.Sub(p.At))/float64(historyFor))
			if x < 0 {
				continue
			}
			part = append(part, fmt.Sprintf("%.1f,%.1f", x, chartHigh*(1-*f/top)))
		}
		end()
		if h := v.s.History[cell]; len(h) > 0 {
			if f, at := of(h[len(h)-1]), h[len(h)-1].At; f != nil {
				l.Last = Fig{text(*f), Known}
				if v.now.Sub(at) > 3*v.each {
					l.Last = Fig{text(*f) + " (" + v.l.T("ago", v.l.Span(v.now.Sub(at).Round(time.Second))) + ")", Old}
				}
			}
		}
		c.Empty = c.Empty && len(l.Parts) == 0
		c.Lines = append(c.Lines, l)
	}
	return c
}
