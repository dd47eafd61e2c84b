# SPDX-License-Identifier: MIT
# Draws the ratio of PyTorch's CPU time on its own allocator and on xseg: gnuplot -e "folder='...'" pytorch.gnuplot
#
# Reads pytorch-bars.tsv of compare.py; writes pytorch.svg.
bars = folder . "/pytorch-bars.tsv"

set terminal svg size 1200,480 dynamic font "sans-serif,14" background rgb "white"
set output folder . "/pytorch.svg"
set datafile separator "\t"

set style fill solid 1.0 noborder
set border 3 lc rgb "#888888"
set tics nomirror scale 0.5 textcolor rgb "#444444"
set grid ytics lc rgb "#e4e4e4" lw 1 lt 1
set rmargin 9
set key top left horizontal reverse Left samplen 1 textcolor rgb "#444444"
set yrange [0:*]
set xtics rotate by -35 noenhanced
set ylabel "PyTorch's own allocator / xseg" textcolor rgb "#444444"
set boxwidth 0.36

plot bars using ($1-0.19):3 with boxes lc rgb "#1f6fb4" title "expandable segments", \
     bars using ($1+0.19):4:xtic(2) with boxes lc rgb "#8fb8dc" title "classic segments", \
     1 with lines lc rgb "#d1622b" lw 2 title "equal"
