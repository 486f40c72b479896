package main

import (
	"image/color"
	"math"
	"os"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// colors are told apart by most people who see colors otherwise than others (Okabe and Ito, 2008).
var colors = []color.Color{
	color.RGBA{0, 114, 178, 255},
	color.RGBA{213, 94, 0, 255},
	color.RGBA{230, 159, 0, 255},
	color.RGBA{0, 158, 115, 255},
	color.RGBA{204, 121, 167, 255},
	color.RGBA{86, 180, 233, 255},
}

// drawCurve writes a chart of a curve, both axes logarithmic.
func drawCurve(name string, c curve, points []point) error {
	p := plot.New()
	p.Title.Text = c.title
	p.X.Label.Text = c.xLabel
	p.Y.Label.Text = "decisions per second"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	var ticks plot.ConstantTicks
	for _, x := range c.xs {
		ticks = append(ticks, plot.Tick{Value: float64(x), Label: thousands(x)})
	}
	p.X.Tick.Marker, p.Y.Tick.Marker = ticks, plot.TickerFunc(decades)
	p.Title.TextStyle.Font.Size, p.Title.Padding = vg.Points(14), vg.Points(8)
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding, p.Legend.XOffs, p.Legend.YOffs = vg.Points(2), vg.Points(8), -vg.Points(8)
	p.Legend.TextStyle.Font.Size = vg.Points(10)
	p.Y.Padding = 0
	p.Add(plotter.NewGrid())

	var names []string
	lines := make(map[string]plotter.XYs)
	for _, pt := range points {
		if !slices.Contains(names, pt.System) {
			names = append(names, pt.System)
		}
		lines[pt.System] = append(lines[pt.System], plotter.XY{X: float64(pt.X), Y: pt.PerSecond})
	}
	for i, name := range names {
		line, dots, err := plotter.NewLinePoints(lines[name])
		if err != nil {
			return err
		}
		line.Color, dots.Color = colors[i%len(colors)], colors[i%len(colors)]
		line.Width, dots.Shape = vg.Points(2), draw.CircleGlyph{}
		p.Add(line, dots)
		p.Legend.Add(name, line, dots)
	}
	p.Y.Max *= 8 // room for the legend
	return save(name, p)
}

// save writes a chart on white, so that it can be read where pages are dark, and with room for the last labels.
func save(name string, p *plot.Plot) error {
	canvas := vgsvg.New(20*vg.Centimeter, 12*vg.Centimeter)
	page := draw.New(canvas)
	page.SetColor(color.White)
	page.Fill(page.Rectangle.Path())
	p.Draw(draw.Crop(page, vg.Points(8), -vg.Points(24), vg.Points(8), -vg.Points(8)))
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if _, err := canvas.WriteTo(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// decades are the powers of ten of an axis.
func decades(least, most float64) []plot.Tick {
	var ticks []plot.Tick
	for v := math.Pow(10, math.Floor(math.Log10(least))); v <= most; v *= 10 {
		if v >= least {
			ticks = append(ticks, plot.Tick{Value: v, Label: thousands(int(v))})
		}
	}
	return ticks
}

// thousands writes 1234567 as 1,234,567.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
