package id

import (
	"context"
	"sync/atomic"
	"testing"
)

// stocked is a client with enough stock for a benchmark.
func stocked(b *testing.B) *Client {
	b.Helper()
	c := NewClient(Options{
		Kinds: []string{"user", "product", "sku", "order", "transfer", "hold"},
		Lease: func(context.Context, string, int64, int64) (int64, int64, error) { return 0, 0, context.Canceled },
	})
	for _, s := range c.sources {
		s.append(1, MaxSeq)
	}
	return c
}

func BenchmarkNext(b *testing.B) {
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		c := stocked(b)
		for b.Loop() {
			if _, err := c.Next("order", 7); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("atomic add", func(b *testing.B) {
		b.ReportAllocs()
		var n atomic.Int64
		for b.Loop() {
			n.Add(1)
		}
	})
}

func BenchmarkNextParallel(b *testing.B) {
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		c := stocked(b)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := c.Next("order", 7); err != nil {
					b.Error(err)
				}
			}
		})
	})
	b.Run("atomic add", func(b *testing.B) {
		b.ReportAllocs()
		var n atomic.Int64
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				n.Add(1)
			}
		})
	})
}

func BenchmarkNextEmpty(b *testing.B) {
	b.ReportAllocs()
	c := NewClient(Options{Kinds: []string{"order"}})
	for b.Loop() {
		if _, err := c.Next("order", 7); err == nil {
			b.Fatal("an ID out of nothing")
		}
	}
}
